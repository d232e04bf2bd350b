defmodule Sconce.Tuner.Entry do
  @moduledoc false
  # A measured choice as a file of lines: a name, a space and a value. The last line is the MD5 of all lines before it, so
  # that a file that was cut or edited is refused. Only text and numbers are read; no term is.

  @format "sconce tuner 1"
  # Names of the facts that an entry has once, in the order of their lines.
  @facts [:kind, :key, :about, :cpu, :features, :library, :version, :date, :choice]
  @most_bytes 1_048_576

  @enforce_keys @facts
  defstruct @facts ++ [rows: [], notes: %{}]

  @typedoc "`rows` are the measured candidates: a label and numbers by name, `us` among them."
  @type t :: %__MODULE__{
          kind: String.t(),
          key: String.t(),
          about: String.t(),
          cpu: String.t(),
          features: String.t(),
          library: String.t(),
          version: String.t(),
          date: String.t(),
          choice: String.t(),
          rows: [{String.t(), %{String.t() => number}}],
          notes: %{String.t() => String.t()}
        }

  @doc "The measured microseconds of the choice."
  @spec us(t) :: number
  def us(%__MODULE__{choice: choice, rows: rows}) do
    {_label, %{"us" => us}} = List.keyfind(rows, choice, 0)
    us
  end

  @doc "Returns text with one line and without control characters, as a fact is stored."
  @spec line(String.t()) :: String.t()
  def line(text), do: text |> String.replace(~r/[\x00-\x1F\x7F]+/u, " ") |> String.trim()

  @doc "Returns a label without blanks."
  @spec label(term) :: String.t()
  def label(term) when is_binary(term) or is_atom(term) or is_integer(term),
    do: term |> to_string() |> line() |> String.replace(" ", "_")

  def label(term), do: term |> inspect() |> label()

  @spec encode(t) :: String.t()
  def encode(%__MODULE__{} = entry) do
    facts = for name <- @facts, do: "#{name} #{line(Map.fetch!(entry, name))}"
    rows = for {label, numbers} <- entry.rows, do: Enum.join(["row", label | pairs(numbers)], " ")
    notes = for {name, text} <- Enum.sort(entry.notes), do: "note #{name}=#{line(text)}"
    body = Enum.map_join([@format | facts ++ rows ++ notes], &[&1, "\n"])
    body <> "md5 #{digest(body)}\n"
  end

  defp pairs(numbers), do: for({name, number} <- Enum.sort(numbers), do: "#{name}=#{number}")

  @doc "Whether an encoded entry can be read again."
  @spec fits?(String.t()) :: boolean
  def fits?(encoded), do: byte_size(encoded) <= @most_bytes

  @doc "Reads an entry. An error is the reason, as text."
  @spec decode(binary) :: {:ok, t} | {:error, String.t()}
  def decode(bytes) when byte_size(bytes) > @most_bytes,
    do: {:error, "the file has more than #{@most_bytes} bytes"}

  def decode(bytes) do
    with {:ok, body} <- whole(bytes),
         [@format | lines] <- String.split(body, "\n", trim: true),
         {:ok, entry} <- read(lines) do
      {:ok, entry}
    else
      {:error, reason} -> {:error, reason}
      [format | _lines] -> {:error, "the file begins with #{format}, not with #{@format}"}
      _other -> {:error, "the file is not an entry"}
    end
  end

  # The lines before the checksum.
  defp whole(bytes) do
    at = byte_size(bytes) - 37

    with true <- at > 0 and String.valid?(bytes),
         <<body::binary-size(at), "md5 ", sum::binary-size(32), "\n">> <- bytes,
         true <- sum == digest(body) do
      {:ok, body}
    else
      _other -> {:error, "the file is cut or was changed"}
    end
  end

  defp read(lines) do
    {facts, lists} = Enum.split(lines, length(@facts))

    with {:ok, facts} <- facts(@facts, facts, []),
         {:ok, rows, notes} <- lists(lists, [], %{}),
         entry = struct!(__MODULE__, [rows: rows, notes: notes] ++ facts),
         {_label, %{"us" => us}} when us > 0 <- List.keyfind(rows, entry.choice, 0) do
      {:ok, entry}
    else
      _other -> {:error, "the file is not an entry"}
    end
  end

  defp facts([], [], found), do: {:ok, found}

  defp facts([name | names], [line | lines], found) do
    case String.split(line, " ", parts: 2) do
      [own, value] -> if own == "#{name}", do: facts(names, lines, [{name, value} | found])
      _other -> :error
    end
  end

  defp facts(_names, _lines, _found), do: :error

  defp lists([], rows, notes), do: {:ok, Enum.reverse(rows), notes}

  defp lists(["row " <> text | lines], rows, notes) do
    with [label | pairs] <- String.split(text, " "),
         {:ok, numbers} <- numbers(pairs, %{}),
         do: lists(lines, [{label, numbers} | rows], notes)
  end

  defp lists(["note " <> text | lines], rows, notes) do
    with [name, value] <- String.split(text, "=", parts: 2),
         do: lists(lines, rows, Map.put(notes, name, value))
  end

  defp lists(_other, _rows, _notes), do: :error

  defp numbers([], found), do: {:ok, found}

  defp numbers([pair | pairs], found) do
    with [name, text] <- String.split(pair, "="),
         {:ok, number} <- number(text),
         do: numbers(pairs, Map.put(found, name, number))
  end

  # No measured number is longer, and Elixir raises for a float that is beyond 64 bits.
  defp number(text) when byte_size(text) > 30, do: :error

  defp number(text) do
    with {number, ""} when abs(number) < 1_000_000_000_000_000_000 <- Integer.parse(text) do
      {:ok, number}
    else
      _other -> with {number, ""} <- Float.parse(text), do: {:ok, number}
    end
  rescue
    ArgumentError -> :error
  end

  defp digest(body), do: body |> :erlang.md5() |> Base.encode16(case: :lower)
end
