defmodule Sconce.Monitor.Names do
  @moduledoc false
  # The names of an app's metrics, so that they can stand in one text for Prometheus: all metrics of a name have one kind and
  # one unit, whatever their labels, and no name is that of a part of a histogram, or of Sconce itself.

  alias Sconce.Error
  alias Sconce.Monitor.Catalogue

  @parts ~w(_bucket _sum _count)

  @doc "Makes the table. The calling process owns it."
  @spec new() :: :ok
  def new do
    :ets.new(__MODULE__, [:named_table, :public, read_concurrency: true])
    :ok
  end

  @doc """
  Makes a metric of this kind and unit by `make`, which fails if there is no room for it. Without a table, as the
  application has not started, every name is allowed.
  """
  @spec taking(String.t(), atom, String.t(), (() -> result)) :: result | {:error, Error.t()}
        when result: {:ok, term} | {:error, Error.t()}
  def taking(name, kind, unit, make) do
    with taken when taken in [:known, :new] <- take(name, kind, unit),
         {:error, error} <- make.() do
      # The name of a metric that does not exist is free.
      if taken == :new, do: :ets.delete(__MODULE__, name)
      {:error, error}
    end
  end

  defp take(name, kind, unit) do
    cond do
      :ets.whereis(__MODULE__) == :undefined -> :known
      :ets.lookup(__MODULE__, name) == [{name, kind, unit}] -> :known
      other = other(name, kind) -> refused(name, kind, unit, other)
      true -> inserted(name, kind, unit)
    end
  end

  defp inserted(name, kind, unit) do
    if :ets.insert_new(__MODULE__, {name, kind, unit}),
      do: :new,
      # Another process was first.
      else: take(name, kind, unit)
  end

  # The metric that has the name, or for which a histogram has it.
  defp other(name, kind) do
    parts = if kind == :histogram, do: Enum.map(@parts, &(name <> &1)), else: []

    of_part =
      for part <- @parts,
          String.ends_with?(name, part),
          {_whole, :histogram, _unit} = whole <-
            [taken(String.replace_suffix(name, part, ""))],
          do: whole

    Enum.find([taken(name) | Enum.map(parts, &taken/1)] ++ of_part, &(&1 != nil))
  end

  defp taken(name) do
    case :ets.lookup(__MODULE__, name) do
      [taken] -> taken
      [] -> Enum.find_value(Catalogue.all(), &(&1.name == name && {name, &1.kind, &1.unit}))
    end
  end

  defp refused(name, kind, unit, {other, other_kind, other_unit}) do
    {what, expected, got} =
      cond do
        other != name or own?(name) ->
          there = "another name, because there is #{described(other, other_kind, other_unit)}"
          {name, there, described(name, kind, unit)}

        other_kind != kind ->
          {"kind of #{name}", "#{other_kind}", "#{kind}"}

        true ->
          {"unit of #{name}", inspect(other_unit), inspect(unit)}
      end

    details = %{what: what, expected: expected, got: got}
    {:error, %Error{kind: :mismatch, op: :monitor, details: details}}
  end

  defp own?(name), do: Enum.any?(Catalogue.all(), &(&1.name == name))

  defp described(name, kind, ""), do: "the #{kind} #{name}"
  defp described(name, kind, unit), do: "the #{kind} #{name} in #{unit}"
end
