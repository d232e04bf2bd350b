defmodule Sconce.HRR.Quantised do
  @moduledoc """
  Items with 8 bits a number: the result of `Sconce.HRR.quantise/1`, for `Sconce.HRR.similarity/2` and
  `Sconce.HRR.cleanup/2`.
  """

  @enforce_keys [:ref, :count, :dimension, :domain]
  defstruct @enforce_keys ++ [device: %Sconce.Device{}]

  @typedoc "Quantised vectors in native memory, with their sizes."
  @type t :: %__MODULE__{
          ref: reference,
          count: pos_integer,
          dimension: pos_integer,
          domain: Sconce.HRR.domain(),
          device: Sconce.Device.t()
        }
end

defimpl Inspect, for: [Sconce.HRR, Sconce.HRR.Quantised] do
  alias Sconce.Figures

  def inspect(%module{count: count, dimension: dimension, domain: domain} = own, _opts)
      when is_integer(count) and is_integer(dimension) and is_atom(domain) do
    vectors = "#{Figures.counted(count, "vector")} of #{Figures.grouped(dimension)}"
    type = if module == Sconce.HRR.Quantised, do: " · int8"
    device = if match?(%{device: %{kind: :cuda}}, own), do: " · #{own.device}"
    "##{Kernel.inspect(module)}<#{vectors} · #{domain}#{type}#{device}>"
  end

  def inspect(_built_by_hand, _opts), do: "##{Kernel.inspect(@for)}<>"
end
