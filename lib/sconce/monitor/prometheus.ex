defmodule Sconce.Monitor.Prometheus do
  @moduledoc false
  # The text format of Prometheus, version 0.0.4.

  alias Sconce.Monitor.Catalogue
  alias Sconce.Monitor.Snapshot.{Histogram, Slot}
  alias Sconce.Options

  # Upper bounds of histograms, as powers of two: for times from about a microsecond to about a minute.
  @times 10..36
  @numbers 0..30

  @doc """
  Labels as they follow a name, sorted: their order makes no other metric, and an empty value is no label, as in Prometheus.
  Raises `ArgumentError` for a wrong name or value.

      iex> Sconce.Monitor.Prometheus.labels!(stage: "a", game: 1, note: "")
      ~S({game="1",stage="a"})
  """
  @spec labels!(keyword) :: String.t()
  def labels!([]), do: ""

  def labels!(labels) do
    fields =
      for {name, value} <- labels do
        # Prometheus gives `le` and names that begin with `__` meanings of their own.
        (to_string(name) =~ ~r/\A(?!__|le\z)[a-zA-Z_][a-zA-Z0-9_]{0,63}\z/ and text?(value)) ||
          Options.argument!("label #{name}", value, "a text of at most 100 bytes")

        {to_string(name), value |> to_string() |> escaped()}
      end

    length(Enum.uniq_by(labels, &elem(&1, 0))) == length(labels) ||
      Options.argument!("option :labels", labels, "different labels")

    case for({name, value} <- Enum.sort(fields), value != "", do: ~s(#{name}="#{value}")) do
      [] -> ""
      given -> "{#{Enum.join(given, ",")}}"
    end
  end

  defp text?(value) when is_atom(value) or is_number(value), do: true
  defp text?(value), do: is_binary(value) and String.valid?(value) and byte_size(value) <= 100

  defp escaped(text) do
    text
    |> String.replace("\\", "\\\\")
    |> String.replace("\"", "\\\"")
    |> String.replace("\n", "\\n")
  end

  @doc "Figures as text. Texts and curves have no form there, sessions are left out, and unknown gauges no line."
  @spec text([Slot.t()]) :: String.t()
  def text(slots) do
    slots
    |> Enum.filter(
      &(&1.kind in [:counter, :gauge, :histogram] and not Catalogue.session?(&1.name))
    )
    |> Enum.group_by(&base(&1.name))
    |> Enum.sort()
    |> Enum.map(fn {base, [first | _rest] = same} ->
      [
        if(first.help == "", do: [], else: ["# HELP ", base, " ", help(first.help), "\n"]),
        ["# TYPE ", base, " ", to_string(first.kind), "\n"],
        Enum.map(same, &lines(base, &1))
      ]
    end)
    |> IO.iodata_to_binary()
  end

  defp base(name), do: name |> String.split("{", parts: 2) |> hd()

  defp help(text), do: text |> String.replace("\\", "\\\\") |> String.replace("\n", "\\n")

  defp lines(_base, %{kind: :gauge, value: nil}), do: []

  defp lines(_base, %{kind: kind, name: name, value: value}) when kind in [:counter, :gauge],
    do: [name, " ", number(value), "\n"]

  defp lines(base, %{kind: :histogram, name: name, unit: unit, value: histogram}) do
    labels = String.replace_prefix(name, base, "")
    {bounds, scale} = if unit == "ns", do: {@times, 1.0e9}, else: {@numbers, 1}
    count = Histogram.count(histogram)

    buckets =
      for bound <- bounds do
        below = below(histogram, bound)

        [
          base,
          "_bucket",
          with_label(labels, number(upper(bound, unit))),
          " ",
          number(below),
          "\n"
        ]
      end

    [
      buckets,
      [base, "_bucket", with_label(labels, "+Inf"), " ", number(count), "\n"],
      [base, "_sum", labels, " ", number(histogram.sum / scale), "\n"],
      [base, "_count", labels, " ", number(count), "\n"]
    ]
  end

  # Whole numbers below a power of two are at most one less.
  defp upper(power, "ns"), do: 2 ** power / 1.0e9
  defp upper(power, _unit), do: 2 ** power - 1

  # Values below a power of two, whose buckets end there: 64 buckets for each octave from 64 on.
  defp below(%Histogram{counts: counts}, power) do
    last = if power < 6, do: 2 ** power, else: (power - 5) * 64
    for({bucket, n} <- counts, bucket < last, do: n) |> Enum.sum()
  end

  defp with_label("", bound), do: ~s({le="#{bound}"})
  defp with_label(labels, bound), do: String.replace_suffix(labels, "}", ~s(,le="#{bound}"}))

  defp number(value) when is_integer(value), do: Integer.to_string(value)
  defp number(value), do: Float.to_string(value)
end
