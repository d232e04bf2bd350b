import Config

# Sconce itself needs no setting: options are given where they are used, `Sconce.Config` has what may
# be set for all of them, and `mix sconce.doctor` lists the environment variables it reads. What stands
# here is for work on Sconce alone.
config :logger, :console, format: "$time [$level] $message\n"
