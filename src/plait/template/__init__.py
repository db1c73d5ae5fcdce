"""Templates: text with placeholders, parsed once, filled in stages, written by sinks.

Reading order: `nodes`, `profiles`, `grammar`, `filters`, `compiled`, `template`, `codegen`, `sinks`,
then in `shell/` `places`, `words`, `rules`, `lexer`, `binding`, `script`. Everything here is pure:
no files, clock, environment, randomness or processes.
"""
