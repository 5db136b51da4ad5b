"""What stands between the reduced gradient and the weights."""
