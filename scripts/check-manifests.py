#!/usr/bin/env python3
"""Checks YAML: that it parses, that no key is given twice, and that Kubernetes resources match their schemas. Needs PyYAML, and
kubernetes-validate for the schemas; a check whose library is missing is skipped with a message.

    scripts/check-manifests.py             the pages, docker/, the workflows, and the values in deploy/
    scripts/check-manifests.py FILE ...    these files
"""

import pathlib
import re
import sys

try:
    import yaml
except ImportError:
    print("PyYAML is not here: the YAML of the pages is not checked (python3-yaml)")
    sys.exit(0)
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None
    print("kubernetes-validate is not here: manifests are read, but not held to the schemas of Kubernetes")


class Strict(yaml.SafeLoader):
    """Refuses a mapping with duplicate keys."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"twice: {sorted(twice)}", node.start_mark)
        return super().construct_mapping(node, deep)


root = pathlib.Path(__file__).resolve().parent.parent
texts = [(name, pathlib.Path(name).read_text()) for name in sys.argv[1:]]
pages = files = []
if not texts:
    pages = sorted([*root.glob("docs/**/*.md"), *root.glob("docker/*.md"), *root.glob("deploy/**/*.md")])
    files = sorted([*root.glob("docker/**/*.y*ml"), *root.glob(".github/workflows/*.yml"), *root.glob("deploy/*.yaml"), *root.glob("deploy/**/*values*.yaml")])
for page in pages:
    for block in re.finditer(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        line = page.read_text()[: block.start()].count("\n") + 2
        texts.append((f"{page.relative_to(root)}:{line}", block[1]))
for file in files:
    texts.append((str(file.relative_to(root)), file.read_text()))

failed = manifests = 0
for where, text in texts:
    try:
        documents = [document for document in yaml.load_all(text, Strict) if document is not None]
    except yaml.YAMLError as error:
        print(f"{where}: {error}")
        failed += 1
        continue
    for document in documents:
        # Values of charts and other YAML files have no kind.
        if not isinstance(document, dict) or "kind" not in document or kubernetes_validate is None:
            continue
        if "/" in document["apiVersion"] and "." in document["apiVersion"] and "k8s.io" not in document["apiVersion"]:
            continue  # A resource of an operator: Kubernetes has no schema for it.
        try:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
            manifests += 1
        except kubernetes_validate.ValidationError as error:
            print(f"{where}: {document['kind']}: {error.message}")
            failed += 1
print(f"{len(texts)} texts of YAML read, {manifests} manifests held to Kubernetes' schemas")
sys.exit(1 if failed or not texts else 0)
