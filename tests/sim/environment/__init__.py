"""Time, disks, networks and an application's database, in memory and as unreliable as real ones."""
