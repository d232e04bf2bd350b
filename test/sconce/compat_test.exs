defmodule Sconce.CompatTest do
  use ExUnit.Case, async: true

  alias Sconce.{Compat, Error, Policy, Session}
  import Sconce.Test.Scratch

  doctest Sconce.Compat

  @golden "test/golden/exphil"

  defp golden(name), do: Path.join(@golden, name)

  @doc false
  def policies,
    do: ~w(mlp mlp_ln_res mlp_small lstm gru lstm_fused gru_fused min_gru min_lstm mamba mamba_2
                       mamba_ssd attention lstm_hybrid jamba gated_ssm deep_res_lstm)

  test "every backbone of ExPhil decides as Axon did on the recorded windows" do
    for name <- policies() do
      {:ok, policy, notes} = Policy.import(golden("#{name}.bin"), from: :exphil)
      assert is_list(notes)

      if name not in ~w(lstm_fused gru_fused) do
        {:ok, compared} = Compat.compare(policy, golden("#{name}.answers.safetensors"))
        assert length(compared.heads) == 6
        for head <- compared.heads, do: assert(head.difference < 1.0e-5 * max(1, head.most))
      end
    end
  end

  test "a policy is described by its options, and a session of its windows decides" do
    {:ok, policy, _notes} = Policy.import(golden("mamba.bin"))
    assert {:mamba, options} = policy.spec.backbone
    assert options[:compat] == :exphil
    {:ok, info} = Policy.info(policy)
    assert info.notes["window_size"] == 20
    {:ok, session} = Session.open(policy, mode: :window, window_size: 20, seed: 1)
    assert {:ok, %Sconce.Action{}} = Session.act(session, frame())
  end

  defp frame do
    player = %Sconce.Frame.Player{
      percent: 0.0,
      facing: 1,
      x: -40.0,
      y: 0.0,
      action: 14,
      character: 1,
      on_ground: true,
      stock: 4
    }

    %Sconce.Frame{own: player, opponent: %{player | x: 40.0}, stage: 32}
  end

  test "a file of parameters alone takes the config of an export, or a given one" do
    alone = golden("gru.weights.safetensors")
    assert {:error, %Error{kind: :not_found, op: :import} = error} = Policy.import(alone)
    assert Exception.message(error) =~ "the config of a safetensors file not found"
    assert Exception.message(error) =~ "to mend it: config: FILE, an export"
    {:ok, one, _notes} = Policy.import(alone, config: golden("gru.bin"))

    config = [
      backbone: :gru,
      hidden_size: 24,
      num_layers: 2,
      use_prev_action: true,
      window_size: 20
    ]

    {:ok, other, _notes} = Policy.import(alone, config: config, from: :safetensors)

    for {name, _shape} <- weights(one),
        do: assert(Policy.weight(one, name) == Policy.weight(other, name))
  end

  defp weights(policy) do
    {:ok, weights} = Policy.weights(policy)
    weights
  end

  test "the error of a file of another writer names the function that reads it" do
    {:ok, policy} = Policy.init([backbone: :gru, hidden_size: 8], seed: 1)
    own = Path.join(tmp_dir!("compat_own"), "policy.safetensors")
    :ok = Policy.save(policy, own)

    for {read, file} <- [
          {&Policy.load/1, golden("gru.bin")},
          {&Policy.load/1, golden("gru.legacy.bin")},
          {&Policy.load/1, golden("mlp_small_checkpoint.axon")},
          {&Policy.load/1, golden("gru.weights.safetensors")},
          {&Policy.import/1, own},
          {&Policy.import(&1, config: [backbone: :gru]), own}
        ] do
      {:error, error} = read.(file)
      other = if file == own, do: "Sconce.Policy.load/2", else: "Sconce.Policy.import/2"
      assert Exception.message(error) =~ "to mend it: #{other}"
    end

    damaged = Path.join(Path.dirname(own), "damaged.safetensors")
    File.write!(damaged, "hello")
    {:error, error} = Policy.load(damaged)
    refute Exception.message(error) =~ "to mend it"
    {:error, error} = Policy.import(damaged)
    refute Exception.message(error) =~ "to mend it"
    {:ok, strategy} = Sconce.Evolve.Strategy.new([0.0, 0.0])
    :ok = Sconce.Evolve.Strategy.save(strategy, damaged)
    {:error, error} = Policy.load(damaged)
    refute Exception.message(error) =~ "to mend it"
  end

  test "a policy of whole windows names the mode that plays it" do
    {:ok, policy, _notes} = Policy.import(golden("attention.bin"))
    {:error, error} = Session.open(policy)

    assert Exception.message(error) ==
             "open: exphil_attention, which reads whole windows: expected :window, got :carry (to mend it: mode: :window)"
  end

  test "wrong options name the right one" do
    assert_raise ArgumentError, ~r/:exphill/, fn ->
      Policy.import(golden("gru.bin"), from: :exphill)
    end

    assert_raise ArgumentError, ~r/did you mean :trust/, fn ->
      Policy.import(golden("gru.bin"), trusted: true)
    end

    assert_raise ArgumentError, ~r/config/, fn -> Policy.import(golden("gru.bin"), config: 7) end

    {:ok, policy, _notes} = Policy.import(golden("mlp_small.bin"))
    assert_raise ArgumentError, ~r/:axon/, fn -> Policy.export(policy, :axn) end
  end

  test "an export is written whole or not at all" do
    dir = tmp_dir!("export")
    {:ok, policy, _notes} = Policy.import(golden("gru.bin"))
    path = Path.join(dir, "policy.bin")
    assert {:ok, nil, []} = Policy.export(policy, :axon, path)
    {:ok, bytes, []} = Policy.export(policy, :axon)
    assert File.read!(path) == bytes
    assert {:error, %Error{}} = Policy.export(policy, :axon, Path.join(dir, "missing/policy.bin"))
    assert File.ls!(dir) == ["policy.bin"]

    {:ok, other} = Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
    assert {:error, %Error{kind: :mismatch, op: :export}} = Policy.export(other, :axon)
  end

  test "the BEAM reads what an export wrote" do
    {:ok, policy, _notes} = Policy.import(golden("mlp_small.bin"))
    {:ok, bytes, []} = Policy.export(policy, :axon)

    <<0, n::32, metadata::binary-size(n), "nx", 1, 0, m::64, term::binary-size(m),
      buffers::binary>> = bytes

    %{config: config} = :erlang.binary_to_term(metadata)
    assert config.hidden_sizes == [8] and config.backbone == :mlp and config.embed_size == 288
    {Nx.Container.Map, layers, :ok} = :erlang.binary_to_term(term)
    {Nx.Container.Map, leaves, :ok} = :proplists.get_value("backbone_dense_0", layers)
    {:t, {288, 8}, {:f, 32}, [nil, nil], [], at, 9216} = :proplists.get_value("kernel", leaves)
    {:ok, weight} = Policy.weight(policy, "backbone.layers.0.dense.weight")
    # Row 1, column 0 of the kernel is row 0, column 1 of the weight.
    assert binary_part(buffers, at + 32, 4) == binary_part(weight, 4, 4)
  end

  test "a trained policy of Sconce goes to Axon and back" do
    gru = {:gru, hidden_size: 8, num_layers: 1, norm_eps: 1.0e-6, dropout: 0.0}

    {:ok, policy} = Policy.init(embedding: {:melee, layout: :packed}, backbone: gru)
    {:ok, bytes, [note]} = Policy.export(policy, :axon)
    assert note =~ "initial state"
    path = Path.join(tmp_dir!("axon"), "policy.bin")
    File.write!(path, bytes)
    {:ok, again, _notes} = Policy.import(path, initial_state: :zero)
    assert again.spec == policy.spec
  end
end

defmodule Sconce.CompatAtomsTest do
  # Atoms are counted in the whole VM.
  use ExUnit.Case, async: false

  alias Sconce.{Error, Policy}

  defp golden(name), do: Path.join("test/golden/exphil", name)

  test "no file makes an atom" do
    # The first import makes the atoms of names that Sconce itself uses.
    Policy.import(golden("broken/atoms.bin"))
    {:ok, _policy, _notes} = Policy.import(golden("broken/good.bin"))
    before = :erlang.system_info(:atom_count)

    for path <- Path.wildcard(golden("broken/*.bin")), trust <- [false, true] do
      result = Policy.import(path, trust: trust)
      assert match?({:error, %Error{op: :import}}, result) or Path.basename(path) =~ ~r/^good/
    end

    assert :erlang.system_info(:atom_count) == before
  end
end
