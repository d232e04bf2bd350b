defmodule Sconce.Tuner do
  alias Sconce.{Config, Error, Lock, Options}
  alias Sconce.Tuner.{Cache, Entry}

  require Logger

  # A choice whose time differs from the recorded one by a larger factor is measured again.
  @drift 1.5
  # Measurements of a recorded choice, of which the best counts.
  @tries 3
  @most_candidates 1000

  @options [
    rounds: [
      type: :pos_integer,
      default: 3,
      max: 1000,
      doc: "Measurements of each candidate. The candidates take turns, and the best time counts."
    ],
    about: [type: :string, default: "", doc: "What is measured, as text for `info/0`."],
    tuner: [
      type: {:or, [:boolean, nil]},
      default: nil,
      doc:
        "`false` takes the first candidate without a measurement; `nil` is the setting of `Sconce.Config`."
    ]
  ]

  @moduledoc """
  Measures once what is fastest on this machine, and keeps the answer in a file.

  | measured | asked by |
  |---|---|
  | format of a policy's packed weights | `weights: {:auto, formats}` of `Sconce.Session` and `Sconce.Serving` |
  | format of a network's weights | `storage: {:auto, formats}` of `Sconce.Net` |
  | batch size of a run | `Sconce.Trainer.tune/2` |
  | number of environments of a run | `Sconce.PPO.tune/1` |
  | candidates of an app | `choose/4` |

  An answer holds for the CPU, its features and threads, the version of Sconce and the native library that it was measured
  with. Another one of these, and a file that was cut or edited, are refused with a reason, and the measurement is made again.
  An answer is checked each time it is used: its choice is measured alone. If the best of #{@tries} times is more than
  #{@drift} times the recorded one, or less than the recorded one divided by #{@drift}, all candidates are measured again.

  Answers lie in the folder of the setting `tuner_dir` of `Sconce.Config` (`SCONCE_TUNER_DIR`), `sconce/tuner` in the
  user's cache by default, one file for each. A file is written beside and renamed, so several VMs may share the folder.
  `SCONCE_TUNER=0`, the setting `tuner: false` and the option `tuner: false` switch the tuner off: no file is read or
  written.

      iex> candidates = [slow: 900, fast: 20]
      iex> {:ok, choice} = Sconce.Tuner.choose({:doctest, 1}, candidates, fn us -> {:ok, us} end)
      iex> {choice.label, choice.chosen, choice.from}
      {"fast", 20, :measured}
      iex> {:ok, again} = Sconce.Tuner.choose({:doctest, 1}, candidates, fn us -> {:ok, us} end)
      iex> again
      #Sconce.Tuner<doctest · fast of slow fast · 20.0 us · cache>
  """

  @enforce_keys [:kind, :label, :chosen, :us, :rows, :from]
  defstruct @enforce_keys ++ [:why, notes: %{}]

  @typedoc """
  A choice. `label` names the candidate `chosen`. `rows` are all measured candidates, each a label and numbers by name; `us`
  is the time of the choice in microseconds. `from` says where the choice comes from: it was `:measured` now, it is of the
  `:cache`, or the tuner is `:off`. `why` is the reason of a measurement although there was a file.
  """
  @type t :: %__MODULE__{
          kind: String.t(),
          label: String.t(),
          chosen: term,
          us: number | nil,
          rows: [{String.t(), %{String.t() => number}}],
          from: :measured | :cache | :off,
          why: String.t() | nil,
          notes: %{String.t() => String.t()}
        }

  @typedoc "A file of the cache. `holds?` is false if it would be refused, for the reason `why`."
  @type entry :: %{
          path: Path.t(),
          kind: String.t() | nil,
          about: String.t() | nil,
          choice: String.t() | nil,
          rows: [{String.t(), %{String.t() => number}}],
          date: String.t() | nil,
          holds?: boolean,
          why: String.t() | nil
        }

  @doc """
  Returns the fastest of labelled candidates: that of the cache if it still holds, and otherwise that of a measurement.

  `key` is a name and any term on which the times depend, such as shapes and threads. Labels are atoms, text or integers.
  `measure` is called with a candidate, and returns `{:ok, microseconds}` or an error. A candidate with an error is left
  out; if all have one, the first error is returned. A single candidate is not measured. Processes measure a key one after
  the other, so `measure` must not wait for another process that asks for the same key.

  #{Options.docs(@options)}

      iex> {:ok, choice} = Sconce.Tuner.choose({:doctest, 2}, [a: 1, b: 2], &{:ok, &1}, tuner: false)
      iex> choice
      #Sconce.Tuner<doctest · a · off>
  """
  @spec choose(
          {atom, term},
          [{term, term}],
          (term -> {:ok, number} | {:error, Error.t()}),
          keyword
        ) ::
          {:ok, t} | {:error, Error.t()}
  def choose(key, candidates, measure, opts \\ []) do
    {kind, asked} = key!(key)
    candidates = candidates!(candidates)
    is_function(measure, 1) || Options.argument!("measure", measure, "a function of a candidate")
    opts = Options.validate!(opts, @options)
    [{first, term} | _] = candidates

    if match?([_], candidates) or not on?(opts[:tuner]) do
      {:ok, off(kind, first, term)}
    else
      labels = Enum.map(candidates, &elem(&1, 0))
      sweep = fn -> swept(candidates, measure, opts[:rounds]) end
      again = fn label -> candidates |> List.keyfind(label, 0) |> elem(1) |> timed(measure) end
      key = %{kind: kind, asked: {asked, labels}, about: opts[:about]}

      with {:ok, choice} <- recall(key, sweep, again, &among(&1, labels)) do
        {_label, chosen} = List.keyfind(candidates, choice.label, 0)
        {:ok, %{choice | chosen: chosen}}
      end
    end
  end

  @doc false
  # Whether the choice of an entry is one of these labels.
  @spec among(Entry.t(), [String.t()]) :: :ok | {:error, String.t()}
  def among(entry, labels) do
    if entry.choice in labels,
      do: :ok,
      else: {:error, "its choice #{entry.choice} is not among the candidates"}
  end

  @doc false
  # Whether the tuner is on, for the value of an option.
  @spec on?(boolean | nil) :: boolean
  def on?(nil), do: Config.get(:tuner)
  def on?(given), do: given

  @doc false
  # The label of a candidate that is any term.
  defdelegate label(term), to: Entry

  @doc false
  # The choice of a key. `sweep` returns `{:ok, {label, rows, notes}}`, and `again` the microseconds of a recorded choice
  # now. A recorded choice for which `holds` returns text is measured again.
  def recall(key, sweep, again, holds) do
    with {:ok, machine} <- Cache.machine() do
      digest = Cache.digest(key.asked)
      path = Cache.path(key.kind, digest, machine)

      case recorded(path, digest, machine, again, holds) do
        {:ok, entry} ->
          {:ok, of(entry, :cache, nil)}

        {:again, why, refused} ->
          key = Map.put(key, :digest, digest)
          other = fn -> found_meanwhile(path, digest, machine, refused, holds) end
          Lock.hold({:tuner, path}, fn -> measured(key, path, machine, sweep, other, why) end)
      end
    end
  end

  defp recorded(path, digest, machine, again, holds) do
    with {:ok, entry} <- Cache.read(path, digest, machine) do
      with :ok <- holds.(entry),
           :ok <- steady(entry, again, @tries, :infinity),
           do: {:ok, entry},
           else: ({:error, why} -> refused(path, why, entry))
    else
      :none -> {:again, nil, nil}
      {:error, why} -> refused(path, why, nil)
    end
  end

  defp refused(path, why, entry) do
    Logger.info("#{path}: #{why}; measuring again")
    {:again, why, entry}
  end

  # The entry that another process measured while this one waited.
  defp found_meanwhile(path, digest, machine, refused, holds) do
    with {:ok, entry} when entry != refused <- Cache.read(path, digest, machine),
         :ok <- holds.(entry) do
      {:ok, entry}
    else
      _none -> :none
    end
  end

  # Whether the time of the choice is still the recorded one. The best of several times counts, because other load only
  # makes them longer.
  defp steady(entry, _again, 0, best) do
    {:error, "its time drifted from #{Entry.us(entry) / 1} us to #{best / 1} us"}
  end

  defp steady(entry, again, tries, best) do
    us = Entry.us(entry)

    case again.(entry.choice) do
      {:ok, now} ->
        best = min(now, best)

        if best <= us * @drift and best >= us / @drift,
          do: :ok,
          else: steady(entry, again, tries - 1, best)

      {:error, error} ->
        {:error, "its choice is refused: #{Exception.message(error)}"}
    end
  end

  defp measured(key, path, machine, sweep, other, why) do
    case other.() do
      {:ok, entry} ->
        {:ok, of(entry, :cache, nil)}

      :none ->
        with {:ok, found} <- sweep.(), do: {:ok, stored(found, key, path, machine, why)}
    end
  end

  defp stored({label, rows, notes}, key, path, machine, why) do
    facts = %{
      kind: key.kind,
      key: key.digest,
      about: key.about,
      date: DateTime.to_iso8601(DateTime.truncate(DateTime.utc_now(), :second)),
      choice: label,
      rows: rows,
      notes: notes
    }

    entry = struct!(Entry, Map.merge(machine, facts))

    with {:error, error} <- Cache.write(path, entry),
         do: Logger.warning("a measurement is not kept: #{Exception.message(error)}")

    of(entry, :measured, why)
  end

  # The rows of all candidates, measured in turns, and the label of the fastest.
  defp swept(candidates, measure, rounds) do
    times =
      for _round <- 1..rounds,
          {label, candidate} <- candidates,
          do: {label, timed(candidate, measure)}

    rows =
      for {label, _candidate} <- candidates,
          us = [_ | _] <- [for({^label, {:ok, us}} <- times, do: us)],
          do: {label, %{"us" => Enum.min(us)}}

    case rows do
      [] -> Enum.find_value(times, fn {_label, {:error, error}} -> {:error, error} end)
      rows -> {:ok, {fastest(rows), rows, %{}}}
    end
  end

  # Clocks may be too coarse for a candidate; no recorded time is 0.
  defp timed(candidate, measure) do
    case measure.(candidate) do
      {:ok, us} when is_number(us) and us >= 0 -> {:ok, max(us / 1, 1.0e-3)}
      {:error, %Error{}} = refused -> refused
      other -> Options.argument!("measure", other, "{:ok, microseconds} or an error")
    end
  end

  defp fastest(rows), do: rows |> Enum.min_by(fn {_label, %{"us" => us}} -> us end) |> elem(0)

  defp of(entry, from, why) do
    %__MODULE__{
      kind: entry.kind,
      label: entry.choice,
      chosen: entry.choice,
      us: Entry.us(entry),
      rows: entry.rows,
      from: from,
      why: why,
      notes: entry.notes
    }
  end

  defp off(kind, label, chosen),
    do: %__MODULE__{kind: kind, label: label, chosen: chosen, us: nil, rows: [], from: :off}

  @doc """
  Returns whether the tuner is `enabled`, its folder `dir`, the `machine` (CPU, features, version and digest of the library),
  and the `entries` of the folder, those of other machines too.

      iex> {:ok, _choice} = Sconce.Tuner.choose({:doctest, 3}, [a: 1, b: 2], &{:ok, &1}, about: "two numbers")
      iex> {:ok, info} = Sconce.Tuner.info()
      iex> entry = Enum.find(info.entries, &(&1.about == "two numbers"))
      iex> {info.enabled, entry.choice, entry.holds?}
      {true, "a", true}
  """
  @spec info() :: {:ok, map} | {:error, Error.t()}
  def info do
    with {:ok, machine} <- Cache.machine() do
      entries = for path <- Cache.files(), do: shown(path, machine)
      {:ok, %{enabled: on?(nil), dir: Cache.dir(), machine: machine, entries: entries}}
    end
  end

  defp shown(path, machine) do
    case File.read(path) do
      {:ok, bytes} -> decoded(path, Entry.decode(bytes), machine)
      {:error, reason} -> unread(path, to_string(:file.format_error(reason)))
    end
  end

  defp decoded(path, {:ok, entry}, machine) do
    why = with :ok <- Cache.fits(entry, machine), do: nil, else: ({:error, why} -> why)

    entry
    |> Map.take([:kind, :about, :choice, :rows, :date])
    |> Map.merge(%{path: path, holds?: why == nil, why: why})
  end

  defp decoded(path, {:error, why}, _machine), do: unread(path, why)

  defp unread(path, why) do
    none = %{kind: nil, about: nil, choice: nil, rows: [], date: nil}
    Map.merge(none, %{path: path, holds?: false, why: why})
  end

  @doc """
  Removes all entries, also those of other machines, and returns their number.

      iex> {:ok, _choice} = Sconce.Tuner.choose({:doctest, 4}, [a: 1, b: 2], &{:ok, &1})
      iex> {:ok, count} = Sconce.Tuner.clear()
      iex> count > 0
      true
  """
  @spec clear() :: {:ok, non_neg_integer} | {:error, Error.t()}
  def clear do
    Enum.reduce_while(Cache.files(), {:ok, 0}, fn path, {:ok, count} ->
      case File.rm(path) do
        :ok -> {:cont, {:ok, count + 1}}
        {:error, :enoent} -> {:cont, {:ok, count}}
        {:error, reason} -> {:halt, {:error, io(path, reason)}}
      end
    end)
  end

  defp io(path, reason) do
    details = %{path: path, reason: to_string(:file.format_error(reason))}
    %Error{kind: :io, op: :tuner, details: details}
  end

  # The name is part of that of the file.
  defp key!({kind, asked} = key) when is_atom(kind) and kind not in [nil, true, false] do
    name = Atom.to_string(kind)

    name =~ ~r/\A[A-Za-z0-9_]{1,64}\z/ ||
      Options.argument!("key", key, "a name of letters, digits and _")

    {name, asked}
  end

  defp key!(other), do: Options.argument!("key", other, "a name and a term, as {:name, term}")

  defp candidates!([_ | _] = list) when length(list) <= @most_candidates do
    labelled =
      for item <- list do
        case item do
          {label, candidate} when is_atom(label) or is_binary(label) or is_integer(label) ->
            {label!(label), candidate}

          other ->
            Options.argument!("candidates", other, "{label, candidate}")
        end
      end

    names = Enum.map(labelled, &elem(&1, 0))
    names == Enum.uniq(names) || Options.argument!("candidates", names, "labels that differ")
    labelled
  end

  defp candidates!(other),
    do: Options.argument!("candidates", other, "a list of 1 to #{@most_candidates} candidates")

  defp label!(label) do
    case is_binary(label) and not String.valid?(label) do
      true -> Options.argument!("candidates", label, "labels in UTF-8")
      false -> Entry.label(label)
    end
  end

  defimpl Inspect do
    alias Sconce.Figures

    def inspect(%{from: :off} = choice, _opts),
      do: "#Sconce.Tuner<#{choice.kind} · #{choice.label} · off>"

    def inspect(choice, _opts) do
      labels = Enum.map_join(choice.rows, " ", &elem(&1, 0))

      "#Sconce.Tuner<#{choice.kind} · #{choice.label} of #{labels} · " <>
        "#{Figures.decimal(choice.us)} us · #{choice.from}>"
    rescue
      _built_by_hand -> "#Sconce.Tuner<>"
    end
  end
end
