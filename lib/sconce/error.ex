defmodule Sconce.Error do
  alias Sconce.{Figures, Memory, Text}
  alias Sconce.GPU.Ledger

  # The order is that of `Kind::ALL` in native/tensor/src/error.rs.
  @kinds [
    not_found: "a file, name or handle does not exist",
    corrupt: "a file or buffer has invalid content",
    mismatch: "two things do not fit each other: a shape, a width, a Spec",
    out_of_range: "a number is outside the range of its field",
    non_finite: "a number is NaN or infinite",
    no_gradient: "no gradient reaches some weights",
    busy: "in use by another caller, or a full queue",
    deadline: "not done in time",
    cancelled: "stopped before it was done",
    out_of_memory: "more memory was needed than is available or allowed",
    unavailable: "missing from this build or machine, or on a lost node",
    io: "the operating system refused a file operation",
    panic: "a bug in Sconce, or a world of the app that raised; the VM lives on"
  ]

  @moduledoc """
  The error that functions of Sconce return as `{:error, error}` and that bang variants raise.

  Match on `kind`. `op` names the operation that failed, and `details` holds the facts as data
  (`%{field: "action", value: 5000, min: 0, max: 399}`). `Exception.message/1` renders a sentence from
  these fields. Invalid options raise `ArgumentError` instead, see `Sconce.Options`.

  Paths, names and reasons in `details` are not escaped and may hold any text of a file. In the message,
  characters that do not print are escaped (`\\e`), and at most 4,000 characters are shown.

  | kind | meaning |
  |---|---|
  #{Enum.map_join(@kinds, "\n", fn {kind, meaning} -> "| `:#{kind}` | #{meaning} |" end)}

      iex> error = %Sconce.Error{kind: :not_found, op: :load, details: %{what: "best.safetensors"}}
      iex> Exception.message(error)
      "load: best.safetensors not found"
  """

  @typedoc "One of the kinds in the table above."
  @type kind ::
          unquote(@kinds |> Keyword.keys() |> Enum.reverse() |> Enum.reduce(&{:|, [], [&1, &2]}))

  @type t :: %__MODULE__{kind: kind, op: atom, details: map}

  @enforce_keys [:kind, :op]
  defexception [:kind, :op, details: %{}]

  @doc """
  Returns the closed list of kinds.

      iex> Enum.take(Sconce.Error.kinds(), 3)
      [:not_found, :corrupt, :mismatch]
  """
  @spec kinds() :: [kind]
  def kinds, do: unquote(Keyword.keys(@kinds))

  @doc false
  # The error of a call that began at `start`, a `System.monotonic_time/0`, and has no answer by its deadline.
  @spec late(atom, non_neg_integer, integer) :: t
  def late(op, deadline_ms, start) do
    waited = System.convert_time_unit(System.monotonic_time() - start, :native, :microsecond)
    details = %{what: "the answer", deadline_ms: deadline_ms, waited_ms: waited / 1000}
    %__MODULE__{kind: :deadline, op: op, details: details}
  end

  @impl true
  def message(%__MODULE__{kind: kind, op: op, details: details}) do
    Text.printable("#{text(op)}: #{said(kind, details)}#{mend(details)}")
  end

  # An error built by hand may have details that no sentence below can render.
  defp said(kind, details) do
    sentence(kind, details)
  rescue
    _unspeakable -> "#{text(kind)} #{shown(details)}"
  end

  defp text(name) when is_atom(name), do: name
  defp text(other), do: shown(other)

  defp shown(term), do: inspect(term, width: :infinity, limit: 50, printable_limit: 500)

  defp sentence(:not_found, %{what: what}), do: "#{what} not found"
  defp sentence(:busy, %{what: "queue" <> _ = what}), do: "#{what} is full"
  defp sentence(:busy, %{what: what}), do: "#{what} is in use"
  defp sentence(:cancelled, _details), do: "cancelled"

  defp sentence(:deadline, %{what: what, deadline_ms: ms, waited_ms: waited}),
    do: "#{what} missed its deadline of #{ms} ms, after #{Float.round(waited, 1)} ms"

  defp sentence(:deadline, %{what: what, deadline_ms: ms}),
    do: "#{what} missed its deadline of #{ms} ms"

  defp sentence(:panic, %{message: message}), do: "panic: #{message}"

  defp sentence(:no_gradient, %{weights: names}),
    do: "no gradient reaches #{Enum.join(names, ", ")}"

  defp sentence(:non_finite, %{step: step, batch: batch, windows: windows} = details) do
    from = for %{game: game, frame: frame} <- Enum.take(windows, 1), do: "#{game}, frame #{frame}"

    "#{details.what} is not finite (#{details.value}) in step #{step}, whose batch #{batch} " <>
      "begins with #{from}"
  end

  defp sentence(:non_finite, %{what: what, value: value, step: step}),
    do: "#{what} is not finite (#{value}) in step #{step}"

  defp sentence(:non_finite, %{what: what, value: value}), do: "#{what} is not finite (#{value})"

  defp sentence(:out_of_memory, %{what: what, bytes: bytes, memory_limit: limit}),
    do: "#{what} needs #{Figures.size(bytes)} and may have #{Figures.size(limit)}"

  defp sentence(:out_of_memory, %{what: what, bytes: bytes, memory: memory}) do
    asked = if bytes, do: " for #{Figures.size(bytes)}"
    ledger = Ledger.new(what, memory)
    of = if memory.budget, do: "a budget of #{Figures.size(memory.budget)}", else: "the card"

    "#{what} has no room#{asked}: #{ledger}, in total #{Figures.size(Ledger.taken(ledger))} of #{of}; " <>
      "#{Figures.size(memory.others)} used by others, #{Figures.size(memory.free)} free"
  end

  defp sentence(:out_of_memory, %{what: what, bytes: bytes, available: available, bound: bound}) do
    "#{what} needs #{Figures.size(bytes)}, and #{Figures.size(available)} are available " <>
      "(#{Memory.bound(bound)})"
  end

  defp sentence(:out_of_memory, %{what: what, bytes: bytes}), do: "#{what} needs #{bytes} bytes"

  defp sentence(:io, %{path: path, reason: reason, report: _report}),
    do: "#{path}: #{reason}; no state of the run was saved"

  defp sentence(:io, %{path: path, reason: reason}), do: "#{path}: #{reason}"

  defp sentence(:mismatch, %{what: what, differences: rows}) do
    rows = for row <- rows, do: "#{row.option} is #{row.recorded}, not #{row.given}"
    "#{what}: a resumed run cannot change these: #{Enum.join(rows, "; ")}"
  end

  defp sentence(:mismatch, %{what: what, expected: expected, got: got}),
    do: "#{what}: expected #{expected}, got #{got}"

  defp sentence(:out_of_range, %{field: field, value: value, min: min, max: max}),
    do: "#{field}: #{number(value)} is #{outside(min, max)}"

  defp sentence(_kind, %{what: what, reason: reason}), do: "#{what}: #{reason}"
  defp sentence(kind, details), do: "#{text(kind)} #{shown(details)}"

  defp mend(%{mend: command}) when is_binary(command), do: " (to mend it: #{command})"
  defp mend(_details), do: ""

  # Bounds that only exclude 0, 1 or infinity are rendered as "above 0", "below 1" or left out.
  @none 1.0e-300
  @all 1.0e300
  @almost_one 1.0 - 1.0e-9

  defp outside(min, max) when max >= @all, do: "not #{lower(min)}"

  defp outside(min, max) when max > @almost_one and max < 1,
    do: "not #{lower(min)} and below 1"

  defp outside(min, max) when min > 0 and min < @none,
    do: "not #{lower(min)} and at most #{number(max)}"

  defp outside(min, max), do: "outside #{number(min)}..#{number(max)}"

  defp lower(min) when min > 0 and min < @none, do: "above 0"
  defp lower(min), do: "at least #{number(min)}"

  # Ids and counts arrive from the native side as floats; they are rendered as integers.
  defp number(value) when is_float(value) and abs(value) < 1.0e16 and trunc(value) == value,
    do: trunc(value)

  defp number(value), do: value
end
