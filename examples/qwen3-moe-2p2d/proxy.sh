tandem proxy --host 0.0.0.0 --port 9000 \
  --prefiller-hosts 192.0.0.1 192.0.0.2 --prefiller-port 8004 8004 \
  --decoder-hosts 192.0.0.3 192.0.0.4 --decoder-ports 8004 8004
