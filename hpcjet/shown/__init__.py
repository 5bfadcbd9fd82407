"""How things are shown to a person, whatever they are of: lengths of time, texts of others, the look of the reports."""
