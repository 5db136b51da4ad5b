"""What a command says where it refuses its arguments."""

import pytest


def refused(main, capsys, *arguments):
    """The one line of error of a command that is refused in this process, which prints nothing else."""
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    out, error = capsys.readouterr()
    assert exit_.value.code == 2
    assert out == ""
    assert error.count("\n") == 1
    return error
