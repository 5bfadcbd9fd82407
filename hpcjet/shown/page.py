"""Pages for a browser: templates beside their code, with the style that all of them share (page.css)."""

from pathlib import Path

import jinja2

from hpcjet.shown.duration import count, duration


def template(folder: Path, name: str = "report.html.j2") -> jinja2.Template:
    """Texts are escaped, and a name that is not given is an error. Filters: count, duration."""
    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FileSystemLoader([folder, Path(__file__).parent]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=count, duration=duration)
    return environment.get_template(name)
