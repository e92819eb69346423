"""Fences on real databases: SQLite, PostgreSQL and MariaDB, through SQLAlchemy and plain connections."""
