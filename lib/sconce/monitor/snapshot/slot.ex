defmodule Sconce.Monitor.Snapshot.Slot do
  @moduledoc false
  # A figure of a snapshot. `value` is an integer (counter), a float or nil (gauge), a `Histogram`, a map of `stride` and
  # `points` or nil (series), and bytes or nil (text). `sequence` is the word of a series or a text that changes with
  # each writing, as {offset, word}.

  @enforce_keys [:name, :kind]
  defstruct [:name, :kind, :sequence, unit: "", help: "", value: nil]

  @type kind :: :counter | :gauge | :histogram | :series | :text
  @type t :: %__MODULE__{name: String.t(), kind: kind, unit: String.t(), help: String.t()}

  @doc """
  Splits a name as in Prometheus into its base and its labels. A name that is not of this form has no labels.

      iex> Sconce.Monitor.Snapshot.Slot.split(~S(sconce_waiting{serving="a \\"b\\"",device="cuda:0"}))
      {"sconce_waiting", [{"serving", "a \\"b\\""}, {"device", "cuda:0"}]}
      iex> Sconce.Monitor.Snapshot.Slot.split("step.loss")
      {"step.loss", []}
  """
  @spec split(String.t()) :: {String.t(), [{String.t(), String.t()}]}
  def split(name) do
    with [_, base, inner] <- Regex.run(~r/\A([^{}"]+)\{(.*)\}\z/s, name),
         {:ok, labels} <- labels(inner, []) do
      {base, labels}
    else
      _plain -> {name, []}
    end
  end

  @label ~S/([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|\z)/

  defp labels("", labels), do: {:ok, Enum.reverse(labels)}

  defp labels(text, labels) do
    case Regex.run(~r/\A#{@label}/s, text) do
      [all, key, value] ->
        rest = binary_part(text, byte_size(all), byte_size(text) - byte_size(all))
        labels(rest, [{key, unescaped(value)} | labels])

      nil ->
        :error
    end
  end

  defp unescaped(value) do
    Regex.replace(~r/\\(.)/s, value, fn
      _all, "n" -> "\n"
      _all, other -> other
    end)
  end
end
