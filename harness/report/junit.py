"""`--junit`: what a run says of each SLO, as a pipeline's test report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from harness.errors import EXIT_OK
from harness.measure.states import Verdict
from harness.report.answer import verdict
from harness.report.words import one_line

if TYPE_CHECKING:
    from harness.measure.result import Result

KINDS: Final = {Verdict.missed: "failure", Verdict.inconclusive: "error"}
Case = tuple[str, Verdict, str]  # name, verdict, what it says


def junit(result: Result) -> str:
    """A test case per SLO, one for --max-errors, one for a knee's --at-least and --baseline.

    What is not met is a failure, what is inconclusive an error. A run that ends otherwise than with
    exit code 0 is never all green: without a case that says why, its status is one.
    """
    judged, said = [*result.slos, *filter(None, [result.errors])], result.commonest_error
    cases: list[Case] = [(one.slo, one.verdict, verdict(one, said)) for one in judged]
    cases += [(gate.name, gate.verdict, gate.sentence) for gate in result.gates]
    if result.exit_code != EXIT_OK and all(said == Verdict.met for _, said, _ in cases):
        reason = result.invalid_reason or f"exit code {result.exit_code}"
        cases.append((result.status, Verdict.inconclusive, f"{result.status}: {reason}"))
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
