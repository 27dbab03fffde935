"""torchrun's command line hands each word of the script's own on as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.elastic.utils import macros

from elastic_launcher.agent.torchrun import command
from elastic_launcher.config import JobConfig

WORDS = ("pa$$word", "$local_rank", "${local_rank}", "$", "$$$", "100$", "a b", "--", "")


@pytest.mark.parametrize("respawn", [False, True])
@pytest.mark.parametrize("script", ["/mnt/$local_rank/tr$$ain.py", "train.py"])
def test_no_word_is_a_template_of_torchs(respawn: bool, script: str) -> None:
    config = JobConfig(script=script, arguments=WORDS)
    words = command(config, "job", "127.0.0.1:1", Path("/tmp"), "/opt/$local_rank/python", respawn=respawn)
    program, *arguments = words[
        words.index("--no-python") + 1 :
    ]  # of these torch takes all but the first for templates
    handed_on = macros.substitute(arguments, "0")
    assert program == "/opt/$local_rank/python"
    assert handed_on[3:] == ["/opt/$local_rank/python", "-u", script, *WORDS]
