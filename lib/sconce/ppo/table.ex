defmodule Sconce.PPO.Table do
  @moduledoc false
  # The table of the options of runs that learn from play.

  use Sconce.Options.Table, path: "native/play/options.exs"
end
