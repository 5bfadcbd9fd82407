"""The events of a run as a timeline for a person: how long each step of the start took. Pure: events in, lines out."""

from hpcjet.timeline.look import timeline_lines, timeline_text

__all__ = ["timeline_lines", "timeline_text"]
