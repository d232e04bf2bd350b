defmodule Sconce.TunerTest do
  # Changes settings of the application.
  use ExUnit.Case, async: false

  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.{Native, Net, Policy, PPO, Serving, Session, Trainer, Tuner}
  alias Sconce.Tuner.{Cache, Entry}

  doctest Tuner

  @spec_options [
    embedding: {:vector, 2},
    backbone: :gru,
    hidden_size: 8,
    heads: [go: {:bernoulli, 1}]
  ]
  @mlp [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]

  setup do
    before = Application.get_env(:sconce, :tuner_dir)
    dir = Path.join(tmp_dir!("tuner"), "cache")
    Application.put_env(:sconce, :tuner_dir, dir)

    on_exit(fn ->
      Application.put_env(:sconce, :tuner_dir, before)
      Application.delete_env(:sconce, :tuner)
    end)

    %{dir: dir}
  end

  # Measures candidates by a table of times, and counts the measurements.
  defp choose(key, times, opts \\ []) do
    test = self()

    measure = fn name ->
      send(test, {:measured, name})
      {:ok, times[name]}
    end

    {:ok, choice} = Tuner.choose(key, for({name, _us} <- times, do: {name, name}), measure, opts)
    {choice, counted(0)}
  end

  defp counted(count) do
    receive do
      {:measured, _name} -> counted(count + 1)
    after
      0 -> count
    end
  end

  defp only_file(dir), do: dir |> File.ls!() |> then(fn [name] -> Path.join(dir, name) end)

  # Writes an entry with other facts, and the right checksum.
  defp rewrite(path, change) do
    {:ok, entry} = path |> File.read!() |> Entry.decode()
    File.write!(path, entry |> change.() |> Entry.encode())
  end

  test "a choice is measured once, candidates in turns, and then comes from its file" do
    assert {%{label: "b", chosen: :b, from: :measured, why: nil}, 6} =
             choose({:t, 1}, [a: 5, b: 2], rounds: 3)

    assert {%{label: "b", chosen: :b, from: :cache, us: 2.0}, 1} = choose({:t, 1}, a: 5, b: 2)
  end

  test "another key, other candidates and another name are measured on their own" do
    choose({:t, 1}, a: 5, b: 2)
    for key <- [{:t, 2}, {:u, 1}], do: assert({%{from: :measured}, 6} = choose(key, a: 5, b: 2))
    assert {%{from: :measured, label: "c"}, 9} = choose({:t, 1}, a: 5, b: 2, c: 1)
  end

  test "a time that drifted, up or down, is measured again, and the new choice stays" do
    choose({:t, 1}, a: 5, b: 2)
    assert {%{from: :cache}, 1} = choose({:t, 1}, a: 5, b: 2.9)
    assert {%{label: "a", from: :measured, why: why}, 9} = choose({:t, 1}, a: 5, b: 7)
    assert why =~ "drifted from 2.0 us to 7.0 us"
    assert {%{label: "a", from: :cache}, 1} = choose({:t, 1}, a: 5, b: 7)
    assert {%{label: "a", from: :measured}, 9} = choose({:t, 1}, a: 3, b: 7)
  end

  test "one slow measurement of several is no drift" do
    choose({:t, 1}, a: 5, b: 2)
    slow = :counters.new(1, [])

    measure = fn _candidate ->
      :counters.add(slow, 1, 1)
      {:ok, if(:counters.get(slow, 1) == 1, do: 90, else: 2)}
    end

    assert {:ok, %{from: :cache}} = Tuner.choose({:t, 1}, [a: :a, b: :b], measure)
  end

  test "a file of another CPU, of other features, of another library or version is refused by name",
       %{dir: dir} do
    for {fact, noun} <- [cpu: "CPU", features: "features", library: "library", version: "version"] do
      choose({:t, 1}, a: 5, b: 2)
      # The choice would be wrong here.
      rewrite(only_file(dir), &Map.merge(&1, %{fact => "old", choice: "a"}))
      {:ok, %{entries: [entry]}} = Tuner.info()
      assert {entry.holds?, entry.why} == {false, refused(noun, fact)}
      assert {%{label: "b", from: :measured, why: why}, 6} = choose({:t, 1}, a: 5, b: 2)
      assert why == refused(noun, fact)
      assert {%{from: :cache}, 1} = choose({:t, 1}, a: 5, b: 2)
    end
  end

  defp refused(noun, fact) do
    {:ok, machine} = Cache.machine()
    "measured with another #{noun}: old, here #{machine[fact]}"
  end

  test "a file cut at any byte is refused by name and measured again", %{dir: dir} do
    choose({:t, 1}, a: 5, b: 2)
    path = only_file(dir)
    whole = File.read!(path)

    for bytes <- 0..(byte_size(whole) - 1) do
      assert {:error, reason} = whole |> binary_part(0, bytes) |> Entry.decode()
      assert reason =~ "cut or was changed"
    end

    File.write!(path, binary_part(whole, 0, div(byte_size(whole), 2)))
    {:ok, %{entries: [entry]}} = Tuner.info()

    assert {entry.path, entry.holds?, entry.why} ==
             {path, false, "the file is cut or was changed"}

    assert {%{label: "b", from: :measured, why: "the file is cut or was changed"}, 6} =
             choose({:t, 1}, a: 5, b: 2)

    assert {:ok, %{entries: [%{holds?: true}]}} = Tuner.info()
  end

  test "a changed byte anywhere is refused, and no file of random lines is an entry", %{dir: dir} do
    choose({:t, 1}, a: 5, b: 2)
    whole = dir |> only_file() |> File.read!()
    :rand.seed(:exsss, 29)

    for _try <- 1..2000 do
      at = :rand.uniform(byte_size(whole)) - 1
      <<before::binary-size(at), byte, rest::binary>> = whole
      changed = before <> <<Bitwise.bxor(byte, :rand.uniform(255))>> <> rest
      assert {:error, reason} = Entry.decode(changed)
      assert is_binary(reason)
    end

    # With a right checksum, so that the lines themselves are read.
    lines = String.split(whole, "\n", trim: true) |> Enum.drop(-1)

    for _try <- 1..2000 do
      body = lines |> Enum.flat_map(&mutated/1) |> Enum.map_join(&(&1 <> "\n"))
      sum = body |> :erlang.md5() |> Base.encode16(case: :lower)

      case Entry.decode(body <> "md5 " <> sum <> "\n") do
        {:ok, entry} -> assert Entry.us(entry) > 0
        {:error, reason} -> assert is_binary(reason)
      end
    end

    assert {:error, _large} = Entry.decode(String.duplicate("a", 100_000))
  end

  defp mutated(line) do
    case :rand.uniform(12) do
      1 -> []
      2 -> [line, line]
      3 -> [String.slice(line, 0, :rand.uniform(String.length(line)))]
      4 -> [line <> " x=1e999"]
      5 -> ["row b us=-1"]
      _same -> [line]
    end
  end

  test "an entry of another key under the name of this one is refused", %{dir: dir} do
    choose({:t, 1}, a: 5, b: 2)
    path = only_file(dir)
    rewrite(path, &%{&1 | key: String.duplicate("0", 32), choice: "a"})

    assert {%{label: "b", from: :measured, why: "the file is of another key"}, 6} =
             choose({:t, 1}, a: 5, b: 2)
  end

  test "the tuner is off by an option, a setting or a variable, and then touches no file",
       %{dir: dir} do
    assert {%{label: "a", from: :off}, 0} = choose({:t, 1}, [a: 5, b: 2], tuner: false)
    Application.put_env(:sconce, :tuner, false)
    assert {%{from: :off}, 0} = choose({:t, 1}, a: 5, b: 2)
    assert {%{from: :measured}, 6} = choose({:t, 2}, [a: 5, b: 2], tuner: true)
    Application.delete_env(:sconce, :tuner)
    File.rm_rf!(dir)
    System.put_env("SCONCE_TUNER", "0")
    on_exit(fn -> System.delete_env("SCONCE_TUNER") end)
    assert {%{from: :off}, 0} = choose({:t, 1}, a: 5, b: 2)
    assert {:ok, %{enabled: false, entries: []}} = Tuner.info()
    refute File.exists?(dir)
  end

  test "a folder that cannot be written costs the cache and not the answer" do
    Application.put_env(:sconce, :tuner_dir, "/proc/no/such")
    assert {%{label: "b", from: :measured}, 6} = choose({:t, 1}, a: 5, b: 2)
    assert {%{label: "b", from: :measured}, 6} = choose({:t, 1}, a: 5, b: 2)
  end

  test "a candidate with an error is left out, and the error of the first is that of all" do
    error = %Sconce.Error{kind: :unavailable, op: :t}
    measure = fn us -> if us, do: {:ok, us}, else: {:error, error} end
    assert {:ok, %{label: "b"} = choice} = Tuner.choose({:t, 1}, [a: nil, b: 4, c: 5], measure)
    assert Enum.map(choice.rows, &elem(&1, 0)) == ["b", "c"]
    assert Tuner.choose({:t, 2}, [a: nil, b: nil], measure) == {:error, error}
  end

  test "many processes that ask at once get one measurement" do
    count = :counters.new(1, [])

    measure = fn us ->
      :counters.add(count, 1, 1)
      Process.sleep(5)
      {:ok, us}
    end

    ask = fn _n -> Tuner.choose({:t, 1}, [a: 5, b: 2], measure, rounds: 2) end
    answers = 1..8 |> Enum.map(&Task.async(fn -> ask.(&1) end)) |> Task.await_many()
    assert Enum.count(answers, &match?({:ok, %{label: "b", from: :measured}}, &1)) == 1
    assert Enum.count(answers, &match?({:ok, %{label: "b", from: :cache}}, &1)) == 7
    assert :counters.get(count, 1) == 4
  end

  test "a caller that dies while it measures leaves the key to the next" do
    test = self()

    slow = fn _us ->
      send(test, :measuring)
      Process.sleep(:infinity)
    end

    pid = spawn(fn -> Tuner.choose({:t, 1}, [a: 5, b: 2], slow) end)
    assert_receive :measuring
    waiting = Task.async(fn -> Tuner.choose({:t, 1}, [a: 5, b: 2], &{:ok, &1}) end)
    Process.exit(pid, :kill)
    assert {:ok, %{label: "b", from: :measured}} = Task.await(waiting)
  end

  test "a measurement that raises keeps nothing and frees the key", %{dir: dir} do
    assert_raise RuntimeError, fn ->
      Tuner.choose({:t, 1}, [a: 1, b: 2], fn _ -> raise "no" end)
    end

    refute File.exists?(dir)
    assert {%{from: :measured}, 6} = choose({:t, 1}, a: 5, b: 2)
  end

  test "writers at once leave one whole file and nothing beside it", %{dir: dir} do
    choose({:t, 1}, a: 5, b: 2)
    path = only_file(dir)
    {:ok, entry} = path |> File.read!() |> Entry.decode()

    1..4
    |> Enum.map(fn n ->
      Task.async(fn -> for m <- 1..25, do: Cache.write(path, %{entry | about: "#{n} #{m}"}) end)
    end)
    |> Task.await_many()

    assert only_file(dir) == path
    assert {:ok, %{about: _text}} = path |> File.read!() |> Entry.decode()
  end

  test "clear removes the entries and no other file", %{dir: dir} do
    choose({:t, 1}, a: 5, b: 2)
    other = Path.join(dir, "notes.txt")
    File.write!(other, "mine")
    assert Tuner.clear() == {:ok, 1}
    assert File.ls!(dir) == ["notes.txt"]
    assert Tuner.clear() == {:ok, 0}
  end

  test "a session and a serving take the fastest of the allowed formats" do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    formats = [:f32, :bf16, {:int8, 0.05}]
    {:ok, session} = Session.open(policy, weights: {:auto, formats}, seed: 1)
    {:ok, %{entries: [entry]}} = Tuner.info()
    assert entry.kind == "weights"
    labels = for {label, _numbers} <- entry.rows, do: label
    assert Enum.sort(labels) == Enum.sort(["f32", "bf16", "{:int8,_0.05}"])
    {fastest, _numbers} = Enum.min_by(entry.rows, fn {_label, numbers} -> numbers["us"] end)
    assert entry.choice == fastest

    {:ok, plain} =
      Session.open(policy,
        weights: Enum.at(formats, Enum.find_index(~w(f32 bf16 {:int8,_0.05}), &(&1 == fastest))),
        seed: 1
      )

    assert session.weights == plain.weights
    {:ok, serving} = Serving.start_link(policy: policy, weights: {:auto, formats})
    {:ok, served} = Serving.info(serving)
    assert served.weights == session.weights
    assert {:ok, %{entries: [_same]}} = Tuner.info()
  end

  test "without the tuner the first format is taken, and one format is not measured" do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    {:ok, session} = Session.open(policy, weights: {:auto, [:bf16, :f32]}, tuner: false)
    {:ok, first} = Session.open(policy, weights: :bf16)
    assert session.weights == first.weights
    {:ok, _only} = Session.open(policy, weights: {:auto, [:f32]})
    assert {:ok, %{entries: []}} = Tuner.info()

    assert_raise ArgumentError, ~r/at least one format/, fn ->
      Session.open(policy, weights: {:auto, []})
    end

    assert_raise ArgumentError, ~r/weights/, fn ->
      Session.open(policy, weights: {:auto, [:int9]})
    end
  end

  test "a net takes the fastest of several formats, and its only one unmeasured" do
    spec = Net.new(input: [2], layers: [{:dense, 2}])
    test = self()

    # The second format is the first one under another name.
    make = fn format ->
      send(test, {:made, format})
      Native.net_init(Net.Spec.to_native(spec), 1, :f32)
    end

    made = fn formats, tuner -> Net.Formats.made({:auto, formats}, spec, tuner, make) end
    assert {:ok, {_ref, _info}, chosen} = made.([:f32, :other], true)
    assert_received {:made, :f32}
    assert_received {:made, :other}
    assert {:ok, %{entries: [%{kind: "net_storage", choice: choice}]}} = Tuner.info()
    assert choice == to_string(chosen)
    assert {:ok, _made, :other} = made.([:other, :f32], false)
    # The option counts, and not the setting.
    Application.put_env(:sconce, :tuner, false)
    assert {:ok, _made, _chosen} = made.([:f32, :third], true)
    assert {:ok, %{entries: [_one, _other]}} = Tuner.info()
    Application.delete_env(:sconce, :tuner)
    {:ok, net} = Net.init(spec, storage: {:auto, [:int8]})
    assert net.storage == :int8
    assert {:ok, %{entries: [_one, _other]}} = Tuner.info()
  end

  test "a search is made once, and again for a limit that its answer does not fit" do
    search = %{
      kind: "batch_size",
      asked: :a_test,
      about: "a test",
      size: :batch_size,
      seconds: :step_seconds,
      speed: :frames_per_second,
      fields: [:batch_size, :step_seconds, :frames_per_second, :bytes],
      facts: [:stopped]
    }

    test = self()

    row = fn size ->
      %{batch_size: size, step_seconds: 0.5, frames_per_second: size / 0.5, bytes: 100 * size}
    end

    run = fn size ->
      send(test, {:searched, size})
      rows = if size, do: [row.(size)], else: [row.(1), row.(2)]
      {:ok, %{rows: rows, batch_size: 2, stopped: "max", memory_limit: nil}}
    end

    recall = &Sconce.Run.Tuned.recall(search, &1, &2, run)
    assert {:ok, %{batch_size: 2, rows: [_, _]}, :measured} = recall.(1000, nil)
    for _turn <- 1..3, do: assert_received({:searched, nil})
    assert {:ok, %{batch_size: 2, rows: [_, _], stopped: "max"}, :cache} = recall.(1000, nil)
    # The recorded size is measured once more, and nothing is searched.
    assert_received {:searched, 2}
    refute_received {:searched, nil}
    assert {:ok, _found, :measured} = recall.(150, nil)
    assert_received {:searched, nil}
    assert {:ok, _found, :measured} = recall.(1000, false)
  end

  test "the batch size of a run comes from the cache with its table, and not if it is off" do
    spec = Policy.Spec.new(@mlp)
    opts = [initial: 2, max: 8, window_size: 4]
    {:ok, first} = Trainer.tune(spec, opts)
    assert first.from == :measured
    # A small step under the load of a test may drift.
    {:ok, second} = Trainer.tune(spec, opts)

    if second.from == :cache,
      do: assert(%{second | from: :measured, memory_limit: nil} == %{first | memory_limit: nil})

    {:ok, off} = Trainer.tune(spec, [tuner: false] ++ opts)
    assert off.from == :measured
    {:ok, %{entries: [entry]}} = Tuner.info()
    assert {entry.kind, entry.holds?} == {"batch_size", true}
  end

  test "a batch size that no longer fits into memory is searched again" do
    spec = Policy.Spec.new(@mlp)
    opts = [initial: 1, max: 64, window_size: 32]
    {:ok, roomy} = Trainer.tune(spec, [memory_limit: "1GB"] ++ opts)
    least = Enum.min(Enum.map(roomy.rows, & &1.bytes))
    {:ok, tight} = Trainer.tune(spec, [memory_limit: trunc(least / 0.8) + 64] ++ opts)
    assert tight.from == :measured
    assert Enum.all?(tight.rows, &(&1.bytes <= least + 64))
  end

  test "the number of environments comes from the cache with its table" do
    opts = [
      env: :cart_pole,
      max: 8,
      environments: 4,
      rollout_steps: 8,
      minibatches: 2,
      hidden_sizes: [8]
    ]

    {:ok, first} = PPO.tune(opts)
    {:ok, second} = PPO.tune(opts)

    if second.from == :cache,
      do: assert(%{second | from: :measured, memory_limit: nil} == %{first | memory_limit: nil})

    assert {:ok, %{entries: [%{kind: "environments"}]}} = Tuner.info()
  end
end
