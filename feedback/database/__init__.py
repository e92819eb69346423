"""The application's own database: a fence between its local transactions and the checks of them, and an inbox
of the records that it has handled.

SQL statements, their dialects, and what an answer of the database means. Knows no producer (it is passed
in), no Ray and no thread; SQLAlchemy is imported only if one of its objects was given, and Django
only if an application asks for its adapter. Public as ``escrowmq.integrations``. May import ``states`` and
``replication``; nothing else from feedback. Read ``fence`` first, then ``statements`` and ``failures``;
``inbox`` is for consumers.
"""
