import Config

# Sconce itself needs no configuration: options are given at each call, `Sconce.Config` sets defaults for all of them,
# and `mix sconce.doctor` lists the environment variables. This file is only for development of Sconce.
config :logger, :console, format: "$time [$level] $message\n"
