"""``accord demo``: reads the packaged sample, a file of one's own, and refuses what is no image."""

from __future__ import annotations

import json

from click.testing import CliRunner

from accord.cli import main
from accord.demo.reader import SAMPLE


def run(*arguments: str):
    return CliRunner().invoke(main, ["demo", *arguments])


def test_it_reads_the_sample_and_prints_the_plan_in_five_lines():
    result = run()
    assert result.exit_code == 0, result.output
    lines = result.output.rstrip().splitlines()
    assert lines[0] == "Accord: 25 operators"
    assert len(lines) == 7
    assert [x.split()[0] for x in lines[2:]] == ["graph", "steps", "memory", "weights", "operator"]
    assert "reference" not in lines[3]
    assert "3 × accord.demo::ChannelShuffle" in lines[6]


def test_it_reads_a_picture_and_writes_json():
    result = run(str(SAMPLE), "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.output)
    assert data["text"] == "Accord: 25 operators" and len(data["plan"]) == 5 and data["run_seconds"] > 0


def test_a_missing_file_is_named():
    result = run("no-such-line.png")
    assert result.exit_code == 2
    assert "no-such-line.png" in result.output
