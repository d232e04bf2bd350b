defmodule Sconce.Config.ExPhil do
  @moduledoc false
  # Converts the keys of `config :exphil` that name a precision or devices to values of `Sconce.Config`.

  # The types of Nx beside the names of Sconce.
  @dtypes %{{:f, 32} => :f32, {:bf, 16} => :bf16, {:f, 16} => :f16}

  @expected [
    training_dtype: "expected one of :f32, :bf16, :f16",
    accumulation_dtype: "expected :f32: products are summed in f32",
    devices: "expected [:cpu], or cards as [:cuda0, :cuda1]",
    distribution: "expected :data_parallel: several cards share each batch"
  ]

  @doc "Converts the value of a key. The result of another value is `:error`."
  @spec convert(atom, term) :: {:ok, term} | :error
  def convert(key, dtype) when key in [:training_dtype, :accumulation_dtype],
    do: {:ok, Map.get(@dtypes, dtype, dtype)}

  def convert(:devices, [cpu]) when cpu in [:cpu, "cpu"], do: {:ok, :cpu}
  def convert(:devices, [cuda]) when cuda in [:cuda, "cuda"], do: {:ok, :cuda}

  def convert(:devices, [_ | _] = devices) when length(devices) > 0 do
    cards = Enum.map(devices, &card/1)

    cond do
      :error in cards or cards != Enum.uniq(cards) -> :error
      match?([_], cards) -> {:ok, {:cuda, hd(cards)}}
      true -> {:ok, {:cuda, cards}}
    end
  end

  def convert(:distribution, :data_parallel), do: {:ok, :data_parallel}
  def convert(_key, _other), do: :error

  @doc "Describes the valid values of a key."
  @spec expected(atom) :: String.t()
  def expected(key), do: Keyword.fetch!(@expected, key)

  defp card({:cuda, index}), do: card(index)
  defp card(index) when index in 0..0xFFFF, do: index
  defp card(name) when is_atom(name), do: name |> Atom.to_string() |> card()

  defp card(name) when is_binary(name) do
    case Regex.run(~r/\Acuda:?(\d{1,5})\z/, name) do
      [_, index] -> index |> String.to_integer() |> card()
      nil -> :error
    end
  end

  defp card(_other), do: :error
end
