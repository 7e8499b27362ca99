"""`--junit`: the verdict on each SLO as a JUnit test report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from harness.errors import EXIT_OK, one_line
from harness.measure.states import Verdict
from harness.report.answer import slo_sentence

if TYPE_CHECKING:
    from harness.measure.result import Result

FAILURE_ELEMENTS: Final = {Verdict.missed: "failure", Verdict.inconclusive: "error"}
TestCase = tuple[str, Verdict, str]  # name, verdict, sentence


def junit(result: Result) -> str:
    """A test case per SLO, one for --max-errors, one for a knee's --at-least and --baseline.

    A missed SLO is a failure, an inconclusive one an error. A run whose exit code is not 0 never
    passes: if no case explains the exit code, the status of the run becomes one.
    """
    results, error = [*result.slos, *filter(None, [result.errors])], result.commonest_error
    cases: list[TestCase] = [(one.slo, one.verdict, slo_sentence(one, error)) for one in results]
    cases += [(gate.name, gate.verdict, gate.sentence) for gate in result.gates]
    if result.exit_code != EXIT_OK and all(found == Verdict.met for _, found, _ in cases):
        reason = result.invalid_reason or f"exit code {result.exit_code}"
        cases.append((result.status, Verdict.inconclusive, f"{result.status}: {reason}"))
    kinds = [FAILURE_ELEMENTS.get(found, "") for _, found, _ in cases]
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
    metadata = {"url": target.url, "model": target.model, "simulated": target.label}
    for key, value in metadata.items():
        ET.SubElement(properties, "property", name=key, value=one_line(value))
    for (title, _, sentence), kind in zip(cases, kinds, strict=True):
        case = ET.SubElement(suite, "testcase", classname=name.replace(" ", "."), name=title)
        message = {"message": one_line(sentence)} if kind else {}
        ET.SubElement(case, kind or "system-out", message).text = one_line(sentence)
    ET.indent(suite)
    return ET.tostring(suite, "unicode", xml_declaration=True) + "\n"
