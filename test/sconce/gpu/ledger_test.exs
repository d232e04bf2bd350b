defmodule Sconce.GPU.LedgerTest do
  # Not async: all tests share the memory of a card.
  use ExUnit.Case, async: false

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Error, GPU, Policy, Session, Trainer}
  alias Sconce.GPU.Ledger

  doctest Ledger

  test "a ledger prints in one line" do
    empty = %Ledger{device: "cuda:0", total: 24_000_000_000}
    assert inspect(empty) == "#Sconce.GPU.Ledger<cuda:0 · 0 B of 24.0 GB: nothing>"

    ledger = %{
      empty
      | budget: 8_000_000_000,
        free: 20_000_000_000,
        weights: 10,
        cached: 2_000_000
    }

    assert inspect(ledger) ==
             "#Sconce.GPU.Ledger<cuda:0 · 2.0 MB of 8.0 GB: weights 10 B, cached 2.0 MB · 20.0 GB free>"

    assert Ledger.taken(ledger) == 2_000_010
  end

  test "an error of a full card names the owners of its memory and a remedy" do
    memory = %{
      total: 24_000_000_000,
      free: 1_000_000_000,
      budget: nil,
      others: 3_000_000_000,
      weights: 40_000_000,
      optimiser: 0,
      sessions: 0,
      loader: 0,
      activations: 19_960_000_000,
      cached: 0
    }

    details = %{
      what: "cuda:0",
      bytes: 2_000_000_000,
      memory: memory,
      mend: "a smaller batch_size"
    }

    assert Exception.message(%Error{kind: :out_of_memory, op: :train, details: details}) ==
             "train: cuda:0 has no room for 2.0 GB: weights 40.0 MB, activations 20.0 GB, in total " <>
               "20.0 GB of the card; 3.0 GB used by others, 1.0 GB free (to mend it: a smaller batch_size)"
  end

  test "a card has the same name as in options" do
    for other <- [:cpu, :auto, 0, {:cuda, -1}, {:cuda, "0"}],
        ask <- [&GPU.ledger/1, &GPU.release/1] do
      assert_raise ArgumentError, ~r/^expected :cuda or {:cuda, n}, got: /, fn -> ask.(other) end
    end
  end

  @tag card: false
  test "without a card ledger and release are errors that name the missing part" do
    for {ask, op} <- [{&GPU.ledger/1, :ledger}, {&GPU.release/1, :release}],
        card <- [:cuda, {:cuda, 3}] do
      assert {:error, %Error{kind: :unavailable, op: ^op, details: details}} = ask.(card)
      assert %{cause: _, reason: _, mend: _} = details
    end
  end

  describe "on a card" do
    @describetag :gpu
    @describetag timeout: 300_000

    setup do
      on_exit(fn ->
        for name <- [:memory_budget, :memory_fraction], do: Application.delete_env(:sconce, name)
      end)

      until(&(Ledger.taken(&1) == 0))
      :ok
    end

    defp ledger! do
      {:ok, ledger} = GPU.ledger()
      ledger
    end

    # A process's memory on the card is freed some time after its end.
    defp until(holds, tries \\ 1000) do
      ledger = ledger!()

      cond do
        holds.(ledger) -> ledger
        tries == 0 -> flunk("still #{inspect(ledger)}")
        true -> Process.sleep(10) && until(holds, tries - 1)
      end
    end

    # Runs `work` in a process of its own, whose handles end with it.
    defp apart(work), do: work |> Task.async() |> Task.await(240_000)

    defp options(size), do: [embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}]] ++ size

    @small [backbone: :gru, hidden_size: 16, num_layers: 1]

    test "policies and sessions are in its ledger until their processes end" do
      apart(fn ->
        {:ok, policy} = Policy.init(options(@small), device: :cuda)
        {:ok, %{num_weights: weights}} = Policy.info(policy)
        assert %Ledger{weights: bytes, sessions: 0} = ledger!()
        assert bytes == 4 * weights

        {:ok, session} = Session.open(policy, mode: :carry)
        {:ok, _action} = Session.act(session, [0.1, 0.2])
        ledger = ledger!()
        assert ledger.sessions > 0, inspect(Map.from_struct(ledger))
        assert ledger.weights == bytes
        assert to_string(ledger) =~ ~r/^weights .*, sessions /
        assert ledger.total > ledger.free

        # An unused session and its policy may be garbage collected before their process ends.
        {:ok, _action} = Session.act(session, [0.1, 0.2])
      end)

      until(&(Ledger.taken(&1) == 0))
      assert GPU.release() == {:ok, 0}
    end

    test "a hundred sessions of ten policies leave no more than the first" do
      life = fn ->
        apart(fn ->
          {:ok, policy} = Policy.init(options(@small), device: :cuda)

          for _again <- 1..10 do
            {:ok, session} = Session.open(policy, mode: :carry)
            {:ok, _action} = Session.act(session, [0.1, 0.2])
            :ok = Session.close(session)
          end
        end)

        until(&(Ledger.taken(&1) == 0)).free
      end

      free = life.()
      for _again <- 1..9, do: assert(life.() == free)
    end

    # A driver gives and takes memory in blocks of 32 MiB, and rounds a budget up to such a block.
    test "cached memory is returned on request" do
      apart(fn ->
        mlp = options(backbone: :mlp, hidden_sizes: [256, 256])
        {:ok, policy} = Policy.init(mlp, device: :cuda)
        rows = List.duplicate(List.duplicate([0.1, 0.2], 1000), 100)
        {:ok, _logits} = Policy.forward(policy, rows)
        %{cached: cached} = ledger!()
        assert cached > 0
        {:ok, given} = GPU.release()
        assert given > 0
        assert %{cached: left} = ledger!()
        assert left < cached
      end)
    end

    test "too little memory is an error with numbers, and the VM continues" do
      Application.put_env(:sconce, :memory_budget, "64MB")

      apart(fn ->
        large = options(backbone: :mlp, hidden_sizes: [4200, 4200])

        assert {:error, %Error{kind: :out_of_memory, details: details} = error} =
                 Policy.init(large, device: :cuda)

        assert %{bytes: bytes, memory: %{budget: 64_000_000}, remedies: [_ | _]} = details
        assert bytes > 64_000_000

        assert Exception.message(error) =~
                 ~r/a policy on cuda:0 has no room for 7\d\.\d MB: .* of a budget of 64\.0 MB; .* \(to mend it: /

        {:ok, policy} = Policy.init(options(@small), device: :cuda)
        assert {:ok, _logits} = Policy.forward(policy, [[[0.1, 0.2]]])
        assert %{budget: 64_000_000} = ledger!()
      end)

      Application.delete_env(:sconce, :memory_budget)
      Application.put_env(:sconce, :memory_fraction, 0.5)
      until(&(Ledger.taken(&1) == 0))

      apart(fn ->
        assert {:ok, _policy} = Policy.init(options(@small), device: :cuda)
        %{budget: budget, total: total} = ledger!()
        assert budget == div(total, 2)
      end)
    end

    test "a run with too little memory halves its batches, and frees its memory at its end" do
      dir = tmp_dir!("ledger")

      games =
        for game <- 1..4, do: {List.duplicate([0.1 * game, 0.5], 800), List.duplicate([1], 800)}

      corpus = Path.join(dir, "corpus")
      {:ok, _} = Corpus.build({:vector, 2}, games, into: corpus, heads: [go: {:bernoulli, 1}])

      train = fn budget, width, out ->
        Application.put_env(:sconce, :memory_budget, budget)

        apart(fn ->
          Process.flag(:trap_exit, true)

          {:ok, run} =
            Trainer.start_link(
              [corpus: corpus, out: Path.join(dir, out), device: :cuda, steps: 3, val_split: 0.0] ++
                [batch_size: 64, window_size: 256, stride: 16, backbone: :mlp] ++
                [hidden_sizes: [width, width], lr_schedule: :constant]
            )

          Trainer.await(run, 200_000)
        end)
      end

      assert {:ok, %{micro_batch: 64}} = train.(nil, 128, "whole")
      until(&(Ledger.taken(&1) == 0))
      assert {:ok, %{micro_batch: windows}} = train.("64MB", 128, "halves")
      assert windows < 64
      until(&(Ledger.taken(&1) == 0))
      # Weights, their gradients and moments take more than a block.
      assert {:error, %Error{kind: :out_of_memory}} = train.("1MB", 1536, "none")
      until(&(Ledger.taken(&1) == 0))
    end
  end
end
