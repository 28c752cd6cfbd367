"""Provide what every measurement needs: a timer, the machine's description, files, tables and pictures.

`normlab.bench`, `normlab.studies` and the tutorials measure with `timing`, describe the machine with `provenance`, and
write records with `files`; `numbers`, `tables` and `pictures` show them.
"""
