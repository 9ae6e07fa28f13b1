"""The papers' questions: each a TOML file for `antecede sweep`, and a module that makes its tables from the results."""
