"""Shell text whose values are bound to variables. Read `binding`, then `lexer`."""
