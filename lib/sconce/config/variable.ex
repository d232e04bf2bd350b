defmodule Sconce.Config.Variable do
  @moduledoc false
  # The texts of environment variables as values of settings.

  alias Sconce.Config.Catalogue
  alias Sconce.{Device, Options}
  alias Sconce.Preset.Catalogue, as: Presets
  alias Sconce.Preset.Text

  @doc "Parses the text of a variable: `:unset` for a text without a value, and an invalid text unchanged."
  @spec read(atom, String.t()) :: term
  def read(:hidden, text), do: if(String.trim(text) in ["", "-1"], do: :cpu, else: :unset)
  def read(_how, ""), do: :unset
  def read(:text, text), do: text

  def read(:preset, text),
    do: Enum.find(Catalogue.named(:preset), text, &(Text.name(&1) == text))

  def read(how, text) when how in [:background, :precision],
    do: Enum.find(Catalogue.named(how), text, &(to_string(&1) == text))

  def read(:flag, "0"), do: :cpu
  def read(:flag, "1"), do: :cuda
  def read(:switch, "0"), do: false
  def read(:switch, "1"), do: true
  def read(:target, "host"), do: :cpu
  def read(how, text) when how in [:device, :target], do: device(text, how)

  def read(:number, text) do
    case Integer.parse(text) do
      {number, ""} -> number
      _ -> text
    end
  end

  def read(:share, text) do
    case Float.parse(text) do
      {share, ""} -> share
      _ -> text
    end
  end

  def read(how, text) when how in [:flag, :switch], do: text

  # `EXLA_TARGET` and `XLA_TARGET` may name a version, as in `cuda12`.
  defp device(text, :target),
    do: kind(String.replace(text, ~r/\d+$/, ""), Device.kinds() -- [:auto], text)

  defp device(text, :device) do
    case Regex.run(~r/^cuda:(\d+)$/, text) do
      [_, index] -> {:cuda, String.to_integer(index)}
      nil -> kind(text, Device.kinds(), text)
    end
  end

  defp kind(name, kinds, text), do: Enum.find(kinds, text, &(to_string(&1) == name))

  @doc "Describes the valid values in the form of the source: as a term, or as the text of a variable."
  @spec expected(atom, term, keyword) :: String.t()
  def expected(how, _given, _spec) when how in [:flag, :switch], do: "expected 0 or 1"
  def expected(:number, _given, _spec), do: "expected a positive integer"
  def expected(:share, _given, _spec), do: "expected a number from 0.01 to 1"

  def expected(how, given, _spec)
      when how in [:device, :target, :preset, :background, :precision] do
    known = known(how)

    case Options.nearest(given, known) do
      nil -> "expected one of #{Enum.join(known, ", ")}"
      near -> "did you mean #{near}?"
    end
  end

  def expected(_term, given, spec) do
    case Options.near(given, spec) do
      nil -> "expected #{Options.expected(given, spec)}"
      near -> "did you mean #{inspect(near)}?"
    end
  end

  defp known(:target), do: ["host" | Device.kinds() -- [:auto]]
  defp known(:device), do: Device.kinds()
  defp known(:preset), do: Presets.names()
  defp known(how), do: Catalogue.named(how)
end
