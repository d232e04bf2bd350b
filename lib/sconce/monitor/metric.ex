defmodule Sconce.Monitor.Metric do
  @moduledoc """
  A metric of an app: a counter, a gauge or a histogram, see `Sconce.Monitor`.

  It belongs to the VM, not to a process, and lives as long as the VM.
  """

  @enforce_keys [:ref, :number, :kind, :name]
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          ref: reference,
          number: non_neg_integer,
          kind: :counter | :gauge | :histogram,
          name: String.t()
        }

  defimpl Inspect do
    def inspect(metric, _opts), do: "#Sconce.Monitor.Metric<#{metric.kind} #{metric.name}>"
  end
end
