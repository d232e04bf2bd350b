defmodule Sconce.Bench.Attack do
  @moduledoc false
  # Runs inputs that once crashed or froze a VM, each in its own VM (`bench/attack.exs`).
  #
  # A row's `make` creates its files in the VM of the script. The row's `attack` then runs in a child VM, which
  # records its footprint before and after. The attack returns pairs of a label and an `answer/1`; `accept`
  # decides which answers are allowed.

  alias Sconce.Bench.{Child, Footprint}
  alias Sconce.Bench.Attack.{Files, Fixtures, Memory, Runs, Servings, Source, Terms}
  alias Sconce.{Error, Policy, Serving}

  @enforce_keys [:item, :name, :attack]
  defstruct [:item, :name, :attack, :limit] ++
              [make: :nothing, accept: :typed, where: :child, inputs: 1, seconds: 2.0, mb: 200] ++
              [patience_ms: 60_000]

  @typedoc """
  `item` is the number of the attack's topic. `attack` and `make` are functions of the row's folder.
  `accept` is `:typed` (only errors), `:answered` (a value is allowed too) or a function of the answers.
  `seconds` and `mb` limit one of the row's `inputs`; nil, for large work, sets no limit. `limit` is a line of
  shell that runs before the child.
  """
  @type t :: %__MODULE__{}

  @typedoc "The answer of a call: a value, a typed error, a refused argument, or a raw error."
  @type answer ::
          {:value, String.t()}
          | {:error, atom, String.t()}
          | {:refused, String.t()}
          | {:raw, String.t()}

  # Time to settle: a pass still runs to its end after its caller gave up.
  @settle_ms 15_000
  @shown 110

  @doc "All rows, sorted by item."
  @spec rows() :: [t]
  def rows do
    for(module <- [Files, Memory, Runs, Servings, Source, Terms], row <- module.rows(), do: row)
    |> Enum.sort_by(& &1.item)
  end

  @doc "Runs a row. Returns its verdict and figures."
  @spec run(t, Path.t()) :: map
  def run(row, dir) do
    File.mkdir_p!(dir)

    case made(row, dir) do
      {:skip, why} -> %{verdict: :skipped, text: why}
      _made when row.where == :here -> here(row, dir)
      _made -> apart(row, dir)
    end
  end

  defp made(%{make: :nothing}, _dir), do: :ok
  defp made(%{make: make}, dir), do: make.(dir)

  defp here(row, dir) do
    {us, answers} = :timer.tc(fn -> answers(row, dir) end)
    judged(row, %{answers: answers, seconds: us / 1.0e6})
  end

  defp apart(row, dir) do
    script = "Sconce.Bench.Attack.child(#{inspect(row.name)}, #{inspect(dir)})"

    ended =
      script |> Child.elixir(limit: row.limit || ":", cd: dir) |> Child.await(row.patience_ms)

    case File.read(result(dir)) do
      {:ok, noted} when ended.status == 0 -> judged(row, :erlang.binary_to_term(noted))
      _none -> %{verdict: :failed, text: lost(ended), seconds: ended.ms / 1000}
    end
  end

  # The last lines of a dead VM show the cause.
  defp lost(%{status: status, output: output}),
    do: "#{Child.ending(status)}#{if output != "", do: ": "}#{output |> last() |> shown()}"

  defp last(output) do
    size = byte_size(output)
    binary_part(output, max(size - @shown, 0), min(size, @shown))
  end

  @doc "Runs the attack in the child VM, and records the footprint that it leaves."
  def child(name, dir) do
    {:ok, _apps} = Application.ensure_all_started(:sconce_bench)

    for app <- [:sconce, :sconce_bench] do
      {:ok, modules} = :application.get_key(app, :modules)
      Enum.each(modules, &Code.ensure_loaded!/1)
    end

    row = Enum.find(rows(), &(&1.name == name))
    # The first use starts threads and loads code, which must not count as growth.
    warm()
    before = Footprint.take()
    Footprint.forget_peak()
    {us, answers} = :timer.tc(fn -> answers(row, dir) end)
    peak = Footprint.peak()
    noted = %{answers: answers, seconds: us / 1.0e6, peak: peak, before: before}
    noted = Map.put(noted, :after, Footprint.settle(before, @settle_ms))
    File.write!(result(dir), :erlang.term_to_binary(noted))
    System.halt(0)
  end

  defp warm do
    scratch = Path.join(System.tmp_dir!(), "sconce-warm-#{System.pid()}")

    try do
      corpus = Fixtures.corpus!(scratch)
      {:ok, _report} = Fixtures.run!(corpus, Path.join(scratch, "run"))
      {:ok, serving} = Serving.start_link(policy: Fixtures.policy!())
      {:ok, _output} = Serving.forward(serving, [[[0.0, 1.0]]])
      Serving.stop(serving)
      answer(fn -> Policy.load(Path.join(scratch, "none")) end)
    after
      File.rm_rf!(scratch)
    end
  end

  defp result(dir), do: Path.join(dir, "result.etf")

  defp answers(row, dir) do
    case row.attack.(dir) do
      answers when is_list(answers) -> answers
      answer -> [{row.name, answer}]
    end
  end

  @doc "The answer of a call, including raised errors and exits."
  @spec answer((() -> term)) :: answer
  def answer(call) do
    answered(call.())
  rescue
    error in Error -> answered({:error, error})
    error in ArgumentError -> refused(error)
    error -> {:raw, error |> Exception.message() |> shown()}
  catch
    kind, reason -> {:raw, kind |> Exception.format_banner(reason) |> shown()}
  end

  defp answered({:error, %Error{kind: :panic} = error}), do: {:raw, Exception.message(error)}
  defp answered({:error, %Error{} = error}), do: {:error, error.kind, Exception.message(error)}
  defp answered({:error, other}), do: {:raw, other |> inspect() |> shown()}
  defp answered(value), do: {:value, value |> inspect(limit: 3, printable_limit: 40) |> shown()}

  # Messages of Sconce name the expected value. Messages of the VM do not, so they count as raw.
  defp refused(%{message: "argument error" <> _ = text}), do: {:raw, text}
  defp refused(%{message: "errors were found at" <> _ = text}), do: {:raw, text}
  defp refused(%{message: text}), do: {:refused, text}

  defp judged(row, noted) do
    wrong = wrong(row.accept, noted.answers) ++ beyond(row, noted)
    told = if wrong == [], do: summary(row.accept, noted.answers), else: Enum.join(wrong, "; ")

    Map.merge(noted, %{verdict: if(wrong == [], do: :held, else: :failed), text: shown(told, 400)})
  end

  defp wrong(accept, answers) when is_function(accept), do: accept.(answers)

  defp wrong(accept, answers) do
    for {label, answer} <- answers, why = wrong_answer(accept, answer), do: "#{label}: #{why}"
  end

  @longest 4_000

  defp wrong_answer(_accept, {:raw, text}), do: "raw: #{text}"
  defp wrong_answer(:typed, {:value, text}), do: "taken: #{text}"
  defp wrong_answer(_accept, {:value, _text}), do: nil
  defp wrong_answer(_accept, {:refused, text}), do: unfit(text)
  defp wrong_answer(:typed, {:error, :deadline, _text}), do: "no answer in time"
  defp wrong_answer(_accept, {:error, _kind, text}), do: unfit(text)

  # Error messages are printed on terminals, so control characters in them are unfit.
  defp unfit(text) do
    cond do
      text =~ ~r/[\x00-\x08\x0b-\x1f\x7f]/ -> "control characters in #{inspect(text)}"
      byte_size(text) > @longest -> "an error of #{byte_size(text)} bytes"
      true -> nil
    end
  end

  defp beyond(row, noted) do
    each = noted.seconds / row.inputs
    more = grown(noted)

    [
      row.seconds && each > row.seconds && "took #{Float.round(each, 1)} s",
      row.mb && more && more > row.mb * 1_000_000 && "took #{div(more, 1_000_000)} MB",
      noted[:after] && left(left_fields(row, noted), noted)
    ]
    |> Enum.filter(&is_binary/1)
  end

  # If hundreds of megabytes are freed, the allocator keeps some of them.
  defp left_fields(row, noted) do
    left = Footprint.left(noted.before, noted.after)
    if row.mb, do: left, else: left -- [:resident_bytes]
  end

  @doc "Peak resident bytes beyond those at the start, or nil."
  @spec grown(map) :: integer | nil
  def grown(%{peak: peak, before: %{resident_bytes: before}}) when peak != nil and before != nil,
    do: max(peak - before, 0)

  def grown(_noted), do: nil

  defp left([], _noted), do: nil

  defp left(fields, noted) do
    "left: " <>
      Enum.map_join(fields, ", ", &"#{&1} #{noted.before[&1]} to #{noted.after[&1]}")
  end

  # The most frequent kinds of answers, or the text of a single one.
  defp summary(accept, _answers) when is_function(accept), do: "as expected"
  defp summary(_accept, [{_label, answer}]), do: words(answer)

  defp summary(_accept, answers) do
    answers
    |> Enum.frequencies_by(fn {_label, answer} -> kind(answer) end)
    |> Enum.sort_by(&(-elem(&1, 1)))
    |> Enum.map_join(", ", fn {kind, n} -> "#{kind} #{n}" end)
  end

  defp kind({:error, kind, _text}), do: kind
  defp kind({what, _text}), do: what

  defp words({:error, kind, text}), do: "#{inspect(kind)} #{text}"
  defp words({what, text}), do: "#{what}: #{text}"

  @doc "A text on one line, without control characters, cut to `most` characters."
  @spec shown(String.t(), pos_integer) :: String.t()
  def shown(text, most \\ @shown) do
    for(<<byte <- text>>, into: "", do: if(byte in 32..126, do: <<byte>>, else: " "))
    |> String.replace(~r/ +/, " ")
    |> String.slice(0, most)
  end
end
