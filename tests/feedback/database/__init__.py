"""Fences on real databases: SQLite, PostgreSQL and MariaDB, by SQLAlchemy and by plain connections."""
