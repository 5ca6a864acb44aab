"""From the evaluation folders of many runs to tables, figures and one page."""
