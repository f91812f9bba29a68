"""What is kept of a run says nothing of the user's code."""

from __future__ import annotations

from aitop.diagnosis.run_summary import anonymous, digest
from aitop.model.run import LineShare, Run
from aitop.model.verdict import Where


def test_source_text_is_kept_as_a_digest_by_which_the_line_is_known_again():
    text = "password = 'hunter2'"
    line = Where(pid=1, file="/home/me/train.py", line=3, function="main", text=text)
    lines = (LineShare(phase="host", where=line, share=0.5, off=0.1),)
    where = anonymous(Run(kind="training", watched=1.0, ended=1.0, lines=lines)).lines[0].where
    assert "hunter2" not in str(where)
    assert (where.file, where.text) == ("train.py", digest(text))
