"""What every caller of a broker group must know: who leads it, how long to pause and to tolerate failures,
and what brokers answer.

Pure rules, shared by threads (``actors``), event loops (``feedback``) and jobs (``spark_integration``), which
differ only in how they make calls. Imports nothing from the other rooms: no clock, no thread, no Ray; ``now``
and randomness are passed in. Read ``leader`` first; ``answers`` has a type for each answer.
"""
