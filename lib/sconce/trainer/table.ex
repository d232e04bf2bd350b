defmodule Sconce.Trainer.Table do
  @moduledoc false
  # The table of training options. The loss keeps a list of its own, because it has too many options to mix with the
  # others.

  use Sconce.Options.Table, path: "native/train/options.exs", apart: :loss
end
