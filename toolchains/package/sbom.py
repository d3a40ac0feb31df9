"""Prints the CycloneDX SBOM of a repaired wheel: sbom.py WHEEL.

auditwheel lists the libraries that it has put into the wheel, with the packages they are from; this adds what the wheel
requires, and validates the result with cyclonedx-python-lib.
"""

import json
import re
import sys
import zipfile

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


def sbom_of(path):
    with zipfile.ZipFile(path) as wheel:
        [listed] = [name for name in wheel.namelist() if name.endswith(".dist-info/sboms/auditwheel.cdx.json")]
        [metadata] = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        sbom = json.loads(wheel.read(listed))
    own = sbom["metadata"]["component"]
    own["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    required = [{"type": "library", "bom-ref": f"required:{name}", "name": name, "version": version, "scope": "required",
                 "purl": f"pkg:pypi/{name}@{version}", "description": "not in the wheel; pip installs a version that matches"}
                for name, version in re.findall(r"^Requires-Dist: ([\w-]+)==(\d+(?:\.\d+)*)", metadata, re.MULTILINE)]
    sbom["components"] = [each for each in sbom["components"] if each["bom-ref"] != own["bom-ref"]] + required
    for entry in sbom["dependencies"]:
        if entry["ref"] == own["bom-ref"]:
            entry["dependsOn"] += [each["bom-ref"] for each in required]
    return sbom


def main():
    text = json.dumps(sbom_of(sys.argv[1]), indent=1)
    problem = JsonStrictValidator(SchemaVersion.V1_4).validate_str(text)
    if problem:
        sys.exit(f"the SBOM of {sys.argv[1]} is not CycloneDX 1.4: {problem}")
    print(text)


if __name__ == "__main__":
    main()
