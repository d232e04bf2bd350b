defmodule Sconce.MemoryTest do
  use ExUnit.Case, async: true

  # A machine under load is slow.
  @moduletag timeout: 300_000

  import Sconce.Test.Scratch

  alias Sconce.{Error, Memory}

  # The VM itself has 2 to 3 GB of address space.
  @kilobytes 15_000_000

  @bounds ["machine", "cgroup", "address_space"]

  test "the available memory is at most that of the machine" do
    case Memory.available() do
      nil ->
        assert Memory.free() == nil

      %{bytes: bytes, bound: bound} ->
        assert bytes <= Memory.total()
        assert bound in @bounds
        assert Memory.bound(bound) =~ " "
    end
  end

  test "an error names the need, the available memory, its bound and a remedy" do
    details = %{
      what: "a pass",
      bytes: 3_000_000_000,
      available: 1_000_000_000,
      bound: "address_space",
      mend: "work on less at once"
    }

    assert Exception.message(%Error{kind: :out_of_memory, op: :forward, details: details}) ==
             "forward: a pass needs 3.0 GB, and 1.0 GB are available " <>
               "(limit of address space (ulimit -v)) (to mend it: work on less at once)"
  end

  # Runs code in a VM with little address space and returns its printed value.
  defp limited(code, kilobytes \\ @kilobytes) do
    ebin = Application.app_dir(:sconce, "ebin")
    script = "IO.puts([\"\\nsays \", inspect((fn -> #{code} end).(), limit: :infinity)])"
    limited = "ulimit -v #{kilobytes} && exec \"$0\" \"$@\""
    # The VM reserves memory per scheduler.
    schedulers = "+S 2:2 +SDcpu 2:2 +SDio 2"
    elixir = [System.find_executable("elixir"), "--erl", schedulers, "-pa", ebin, "-e", script]
    {output, status} = run("/bin/sh", ["-c", limited | elixir], System.tmp_dir!())
    assert status == 0, output
    [_before, said] = String.split(output, "\nsays ")
    {value, _binding} = Code.eval_string(said)
    value
  end

  @mlp """
  {:ok, policy} = Sconce.Policy.init(backbone: :mlp, hidden_sizes: [8192, 8192],
    embedding: {:vector, 1}, heads: [go: {:categorical, 2}])
  """

  test "a pass without enough memory is refused, and the VM continues" do
    # A pass over 8 MB of rows would take 64 GB.
    [refused, again, small] =
      limited("""
      #{@mlp}
      rows = :binary.copy(<<1.0::float-32-little>>, 2_000_000)
      told = fn -> with {:error, e} <- Sconce.Policy.forward(policy, rows, batch: 2_000_000),
        do: {e.kind, e.details} end
      refused = told.()
      {:ok, %{shape: shape}} = Sconce.Policy.forward(policy, <<1.0::float-32-little>>, batch: 1)
      [refused, told.(), shape]
      """)

    for {:out_of_memory, details} <- [refused, again] do
      assert %{bytes: bytes, available: available, bound: bound, mend: mend} = details
      assert bytes > 30_000_000_000 and available < 15_360_000_000
      assert bound in @bounds and mend =~ "less at once"
    end

    assert {{:out_of_memory, _}, {:out_of_memory, _}} = {refused, again}
    assert small == {1, 1, 2}
  end

  test "weights without enough memory are refused" do
    told =
      limited(
        """
        kind = fn {:error, error} -> error.kind; {:ok, _} -> :ok end
        vector = [embedding: {:vector, 4}, heads: [go: {:categorical, 2}]]
        mlp = &kind.(Sconce.Policy.init([backbone: :mlp, hidden_sizes: [&1, &1]] ++ vector))
        [mlp.(30_000), mlp.(60_000), mlp.(64)]
        """,
        5_000_000
      )

    assert told == [:out_of_memory, :out_of_memory, :ok]
  end

  test "a training without enough memory is refused before its first step, and another one runs" do
    dir = tmp_dir!("memory")

    {refused, finished} =
      limited("""
      {:ok, _} = Application.ensure_all_started(:sconce)
      frames = :binary.copy(<<0.5::float-32-little, 0.25::float-32-little>>, 2500)
      games = List.duplicate({frames, :binary.copy(<<1::16-little>>, 2500)}, 4)
      corpus = Path.join(#{inspect(dir)}, "corpus")
      heads = [action: {:categorical, 2}]
      {:ok, _} = Sconce.Corpus.build({:vector, 2}, games, into: corpus, heads: heads)
      spec = fn size -> Sconce.Policy.Spec.new([backbone: :gru, hidden_size: size, num_layers: 2] ++
        [embedding: {:vector, 2}, heads: heads]) end
      run = fn name, size, options ->
        {:ok, trainer} = Sconce.Trainer.start_link([spec: spec.(size), corpus: corpus,
          out: Path.join(#{inspect(dir)}, name)] ++ options)
        Sconce.Trainer.await(trainer, :infinity)
      end
      Process.flag(:trap_exit, true)
      {:error, error} = run.("large", 512, batch_size: 512, window_size: 2000, stride: 1)
      {:ok, _} = run.("small", 16, batch_size: 8, window_size: 20, steps: 2, evaluate: false)
      {{error.kind, error.details}, :finished}
      """)

    assert {:out_of_memory, %{what: what, bytes: bytes, available: available}} = refused
    assert what =~ "512 x 2000" and bytes > available
    assert finished == :finished
  end

  test "a store collects the garbage of its caller before it refuses a read" do
    dir = tmp_dir!("memory")

    answers =
      limited(
        """
        {:ok, _} = Application.ensure_all_started(:sconce)
        defmodule :telemetry do
          def execute(_name, _measured, told), do: send(:reader, {:told, told.where, told.decision})
        end
        Process.register(self(), :reader)
        told = fn told -> receive do
          {:told, where, decision} -> [{where, decision} | told.(told)]
        after 0 -> [] end end
        {:ok, store} = Sconce.Store.open(#{inspect(dir)}, ram: 1_000_000, compressed: 0)
        data = :binary.copy(<<7>>, 64 * 1_048_576)
        :ok = Sconce.Store.put(store, "a", %{data: data, shape: {64, 1_048_576}, type: {:u, 8}})
        read = fn -> with {:error, error} <- Sconce.Store.get(store, "a"), do: error.kind end
        fill = fn fill, held ->
          case read.() do
            {:ok, tensor} -> fill.(fill, [tensor | held])
            refused -> {refused, Process.put(:held, held)}
          end
        end
        {refused, nil} = fill.(fill, [])
        full = {refused, told.(told)}
        # Garbage of the old generation is left by a minor collection.
        :erlang.garbage_collect()
        Process.delete(:held)
        {:ok, %{shape: shape}} = Sconce.Store.get(store, "a")
        [full, {shape, told.(told)}]
        """,
        5_000_000
      )

    assert answers == [
             {:out_of_memory, [store: :retry, store: :stop]},
             {{64, 1_048_576}, [store: :retry]}
           ]
  end
end
