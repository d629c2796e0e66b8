"""Values in the columns of a stream: exactly, or refused. One module for each form in which they come.

Promised: a value keeps its meaning, and is rounded only to the precision of `float` and `double`. `fitting` takes
Arrow's tables, of files and of connectors, and reads a text as what it says. `sent` takes the Python values of a
handler, whose types say what is meant: a text is no number there, and a time is no date, even at midnight.
`json_texts` brings JSON into texts for `fitting`, so that no digit and no zone is lost. `refusals` says what to write
or send instead.

Not promised: that a value that one form takes is taken in each. tests/storage/test_values.py has their edges side by
side.

Start reading at `fitting.fitted`, then `sent.table_of`.
"""
