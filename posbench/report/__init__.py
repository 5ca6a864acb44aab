"""From the evaluation folders of many runs to one table, one CSV and two figures."""
