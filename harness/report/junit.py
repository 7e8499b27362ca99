"""`--junit`: what a run says of each SLO, as a pipeline's test report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from harness.errors import EXIT_OK
from harness.measure.states import Verdict
from harness.report.answer import verdict
from harness.report.say import count
from harness.report.words import one_line

if TYPE_CHECKING:
    from harness.measure.result import Knee, Result

KINDS: Final = {Verdict.missed: "failure", Verdict.inconclusive: "error"}
Case = tuple[str, Verdict, str]  # name, verdict, what it says


def junit(result: Result, at_least: int | None = None) -> str:
    """A test case per SLO, one for --max-errors, one for a knee's --at-least.

    What is not met is a failure, what is inconclusive an error. A run that ends otherwise than with
    exit code 0 is never all green: without a case that says why, its status is one.
    """
    cases: list[Case] = [(one.slo, one.verdict, verdict(one)) for one in result.slos]
    if (errors := result.errors) is not None:  # they need not be shown to be few enough
        passed = Verdict.missed if errors.verdict == Verdict.missed else Verdict.met
        cases.append((errors.slo, passed, verdict(errors)))
    if at_least is not None and result.knee is not None:
        cases.append((f"holds at least {at_least}", *_holds(result.knee, at_least)))
    if result.exit_code != EXIT_OK and all(said == Verdict.met for _, said, _ in cases):
        why = result.invalid_reason or f"exit code {result.exit_code}"
        cases.append((result.status, Verdict.inconclusive, f"{result.status}: {why}"))
    kinds = [KINDS.get(said, "") for _, said, _ in cases]
    name, target = f"vllm-harness {result.command}", result.target
    suite = ET.Element(
        "testsuite",
        name=name,
        tests=str(len(cases)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        time=f"{sum(level.seconds for level in result.levels):.3f}",
    )
    properties = ET.SubElement(suite, "properties")
    told = {"url": target.url, "model": target.model, "simulated": target.label}
    for key, value in told.items():
        ET.SubElement(properties, "property", name=key, value=one_line(value))
    for (title, _, sentence), kind in zip(cases, kinds, strict=True):
        case = ET.SubElement(suite, "testcase", classname=name.replace(" ", "."), name=title)
        message = {"message": one_line(sentence)} if kind else {}
        ET.SubElement(case, kind or "system-out", message).text = one_line(sentence)
    ET.indent(suite)
    return ET.tostring(suite, "unicode", xml_declaration=True) + "\n"


def _holds(knee: Knee, at_least: int) -> tuple[Verdict, str]:
    """By what was shown: a level that passed there or above, or one that failed there or below."""
    asked = count(at_least, "user")
    if (knee.holds or 0) >= at_least:
        return Verdict.met, f"holds {knee.holds}, asked for {asked}"
    if knee.fails_by is not None and knee.fails_by <= at_least:
        return Verdict.missed, f"fails by {knee.fails_by}, asked for {asked}"
    estimate = "" if knee.estimate is None else f"; best estimate {knee.estimate}"
    told = f"no level from {asked} on was shown to pass, none up to there to fail{estimate}"
    return Verdict.inconclusive, f"{told}; try a longer --budget"
