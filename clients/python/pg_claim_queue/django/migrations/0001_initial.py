from __future__ import annotations

from typing import Any

from django.db import migrations


def create_extension(apps: Any, schema_editor: Any) -> None:
    """Where a backend of TASKS has its queues.  Only a superuser can; where the extension
    is there already, any role."""
    from .. import backends
    if backends(schema_editor.connection.alias):
        schema_editor.execute("CREATE EXTENSION IF NOT EXISTS queue")


class Migration(migrations.Migration):          # type: ignore[misc]
    dependencies: list[Any] = []
    operations = [migrations.RunPython(create_extension, migrations.RunPython.noop)]
