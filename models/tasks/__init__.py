"""What experiments learn, one task a file. None of them imports TensorFlow before it is asked for more than its settings."""

from models.tasks.bert_pretraining import BertPretraining
from models.tasks.cifar10 import Cifar10
from models.tasks.digits import Digits
from models.tasks.dlrm import Dlrm
from models.tasks.imagenet import ImageNet
from models.tasks.squad import Squad

TASKS = (Digits, Cifar10, BertPretraining, Squad, Dlrm, ImageNet)
