"""How a cluster is put together: configuration, start on Ray, the supervisor, and the command line.

``cli`` holds the commands of ``escrowmq`` and ``demo`` the demo; both import the modules at the root. This
package may import ``actors``, ``feedback`` and ``replication``. Read ``local`` first (a whole cluster inside
one program), then ``supervisor``, which restarts and moves replicas.
"""
