defmodule Sconce.PolicyTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch, only: [tmp_dir!: 0, elixir_within: 2]

  alias Sconce.{Error, Frame, Policy, Serving, Session}
  alias Sconce.Policy.Spec

  doctest Policy

  @heads [fire: {:bernoulli, 2}, move: {:categorical, 3}]
  @small [embedding: {:vector, 2}, hidden_size: 8, heads: @heads]

  defp init!(opts \\ [], seed \\ 1) do
    {:ok, policy} = Policy.init(Keyword.merge(@small, opts), seed: seed)
    policy
  end

  defp weights!(policy) do
    {:ok, names} = Policy.weights(policy)

    for {name, shape} <- names, into: %{} do
      {:ok, data} = Policy.weight(policy, name)
      assert byte_size(data) == 4 * Tuple.product(shape)
      {name, data}
    end
  end

  defp floats(binary), do: for(<<v::float-32-little <- binary>>, do: v)

  defp assert_close(a, b) do
    assert byte_size(a) == byte_size(b)
    for {x, y} <- Enum.zip(floats(a), floats(b)), do: assert_in_delta(x, y, 1.0e-5)
  end

  test "equal seeds make equal policies, other seeds do not" do
    assert weights!(init!()) == weights!(init!())
    assert weights!(init!()) != weights!(init!([], 2))
  end

  test "a policy prints in one line" do
    assert inspect(init!()) =~
             ~r/^#Sconce.Policy<vector 2 -> gru 8x2 -> fire\(2\) move\(3\) · [\d.]+ k weights · cpu>$/

    {:ok, melee} = Policy.init([])
    assert inspect(melee) =~ ~r/^#Sconce.Policy<melee 428 -> gru 256x2 -> controller\(81\) · /
  end

  test "a checkpoint holds the Spec, the weights and the notes" do
    path = Path.join(tmp_dir!(), "policy.safetensors")
    policy = init!()
    notes = %{step: 300, best: true, name: "tiny", metrics: [%{"NLL, nats" => 1.5}], none: nil}
    assert Policy.save(policy, path, notes: notes) == :ok

    {:ok, loaded} = Policy.load(path)
    assert loaded.spec == policy.spec
    assert weights!(loaded) == weights!(policy)

    {:ok, info} = Policy.info(loaded)
    assert info.spec == policy.spec

    assert info.notes == %{
             "step" => 300,
             "best" => true,
             "name" => "tiny",
             "metrics" => [%{"NLL, nats" => 1.5}],
             "none" => nil
           }
  end

  test "a checkpoint that is missing, truncated, of a later version or another file is refused" do
    path = Path.join(tmp_dir!(), "policy.safetensors")
    assert {:error, %Error{kind: :not_found, op: :load}} = Policy.load(path)

    :ok = Policy.save(init!(), path)
    whole = File.read!(path)

    for length <- [0, 7, 8, 200, div(byte_size(whole), 2), byte_size(whole) - 1] do
      File.write!(path, binary_part(whole, 0, length))
      assert {:error, %Error{kind: :corrupt, op: :load}} = Policy.load(path)
    end

    File.write!(path, String.replace(whole, ~S(\"version\":1), ~S(\"version\":5)))
    assert {:error, %Error{kind: :mismatch} = error} = Policy.load(path)
    assert Exception.message(error) =~ ~r/version of .*: expected 4, got 5/

    other = String.replace(whole, ~S(\"hidden_size\":8,), ~S(\"hidden_size\":9,))
    File.write!(path, other)
    assert {:error, %Error{kind: :corrupt} = error} = Policy.load(path)
    assert Exception.message(error) =~ "its bytes are not those that were written"
    # A checkpoint of an earlier version has no digest.
    File.write!(path, String.replace(other, "sha256", "sha255"))
    assert {:error, %Error{kind: :mismatch} = error} = Policy.load(path)
    assert Exception.message(error) =~ "weight backbone."

    File.write!(path, :binary.copy("no policy ", 100))
    assert {:error, %Error{kind: :corrupt}} = Policy.load(path)
    assert {:error, %Error{kind: :mismatch}} = Policy.load(Path.dirname(path))
  end

  describe "packed weights" do
    defp saved!(policy, opts) do
      path = Path.join(tmp_dir!(), "packed.safetensors")
      :ok = Policy.save(policy, path, opts)
      path
    end

    defp decide!(session, frames), do: for(frame <- frames, do: elem(act!(session, frame), 1))
    defp act!(session, frame), do: {:ok, _action} = Session.act(session, frame, logits: true)

    test "are mapped, print, and decide like the weights that were packed" do
      frames = for i <- 1..6, do: [i / 3, 1.0 - i / 4]
      mlp = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [40, 40], heads: @heads]
      {:ok, policy} = Policy.init(mlp, seed: 1)

      for weights? <- [true, false], format <- [:f32, :bf16, :int8, {:int4, 1.0}] do
        path = saved!(policy, packed: format, weights: weights?, notes: %{step: 3})
        {:ok, loaded} = Policy.load(path)
        {:ok, plain} = Session.open(policy, seed: 1, weights: format)
        {:ok, session} = Session.open(loaded, seed: 1)
        {:ok, info} = Session.info(session)
        assert {:ok, %{matrices: matrices, path: :packed}} = Session.info(plain)
        assert {info.matrices, info.path, loaded.packed} == {matrices, :packed, plain.weights}
        assert inspect(loaded) =~ "k weights · packed #{plain.weights} · cpu>"
        decided = decide!(session, frames)
        assert decided == decide!(plain, frames)
        assert {:ok, %{notes: %{"step" => 3}, packed: packed}} = Policy.info(loaded)
        assert packed == loaded.packed
        assert %{loaded | ref: policy.ref, packed: nil} == policy
        {:ok, serving} = Serving.start_link(policy: loaded)
        {:ok, served} = Serving.open(serving, seed: 1)
        assert decide!(served, frames) == decided
      end
    end

    test "remember: windows are steps of them too" do
      frames = for i <- 1..12, do: [i / 7, 1.0 - i / 9]
      {:ok, loaded} = Policy.load(saved!(init!(), packed: :f32, weights: false))

      for mode <- [:carry, :window, {:resync, 3}] do
        opts = [seed: 1, mode: mode, window_size: 5, deterministic: true]
        [plain, packed] = for policy <- [init!(), loaded], do: elem(Session.open(policy, opts), 1)

        for {one, other} <- Enum.zip(decide!(plain, frames), decide!(packed, frames)),
            {head, logits} <- one.logits,
            {x, y} <- Enum.zip(logits, other.logits[head]),
            do: assert_in_delta(x, y, 1.0e-5)
      end
    end

    test "leave the other weights in the file until they are needed" do
      policy = init!()
      {:ok, loaded} = Policy.load(saved!(policy, packed: :int8))
      assert weights!(loaded) == weights!(policy)
      frames = [[[0.5, 1.0], [1.0, 0.0]]]
      assert Policy.forward(loaded, frames) == Policy.forward(policy, frames)
      {:ok, session} = Session.open(loaded, weights: :f32)
      assert session.weights == :f32
      assert {:ok, %{packed: nil}} = Policy.load(saved!(loaded, []))
    end

    test "alone refuse what needs the others, by name" do
      path = saved!(init!(), packed: :f32, weights: false)
      {:ok, loaded} = Policy.load(path)

      for refused <- [
            Policy.forward(loaded, [[[0.5, 1.0]]]),
            Policy.weight(loaded, "backbone.weight_ih_l0"),
            Policy.save(loaded, path),
            Session.open(loaded, weights: :int8),
            Sconce.Compress.Policy.mix(loaded, [])
          ] do
        assert {:error, %Error{kind: :unavailable} = error} = refused
        assert Exception.message(error) =~ path
      end

      assert_raise ArgumentError, ~r/packed: expected a format/, fn ->
        Policy.save(init!(), path, weights: false)
      end

      assert_raise ArgumentError, ~r/option :packed/, fn ->
        Policy.save(init!(), path, packed: :int2)
      end
    end

    test "of a file that is cut or overwritten while it is mapped are errors of the next decision" do
      for {change, said} <- [
            {&File.write!(&1, ""), "cut while it was read"},
            {&File.write!(&1, binary_part(File.read!(&1), 0, 4000)), "cut while it was read"},
            {&File.write!(&1, File.read!(&1)), "changed while it was read"}
          ] do
        path = saved!(init!(), packed: :f32, weights: false)
        {:ok, loaded} = Policy.load(path)
        {:ok, session} = Session.open(loaded, seed: 1)
        {:ok, _action} = Session.act(session, [0.5, 1.0])
        # Longer than the resolution of a file system's times.
        Process.sleep(50)
        change.(path)
        assert {:error, %Error{kind: :corrupt} = error} = Session.act(session, [0.5, 1.0])
        assert Exception.message(error) =~ path and Exception.message(error) =~ said
      end
    end

    test "of a file that is replaced or removed stay" do
      path = saved!(init!(), packed: :f32)
      {:ok, loaded} = Policy.load(path)
      {:ok, session} = Session.open(loaded, seed: 1, deterministic: true)
      {:ok, before} = Session.act(session, [0.5, 1.0])
      :ok = Policy.save(init!([], 2), path, packed: :f32)
      :ok = Session.reset(session)
      assert Session.act(session, [0.5, 1.0]) == {:ok, before}
      assert {:error, %Error{kind: :mismatch}} = Policy.forward(loaded, [[[0.5, 1.0]]])
      File.rm!(path)
      :ok = Session.reset(session)
      assert Session.act(session, [0.5, 1.0]) == {:ok, before}
    end

    test "of another CPU or version are packed again, or refused by name" do
      # Another VM reads the file as a CPU without vectors.
      script = fn path ->
        """
        case Sconce.Policy.load(#{inspect(path)}) do
          {:ok, policy} -> IO.inspect(policy.packed)
          {:error, error} -> IO.puts(Exception.message(error))
        end
        """
      end

      load = fn path ->
        args = ["-pa", Application.app_dir(:sconce, "ebin"), "-e", script.(path)]
        {out, 0} = System.cmd("elixir", args, env: [{"SCONCE_CPU", "portable"}])
        out
      end

      policy = init!()
      assert load.(saved!(policy, packed: :f32)) == "nil\n"
      path = saved!(policy, packed: :f32, weights: false)
      {:ok, %{packed: here}} = Sconce.native_info()
      said = load.(path)

      if here =~ "portable" do
        assert said == ":f32\n"
      else
        assert said =~ "load: packed weights of #{path}: expected "
        assert said =~ " portable narrow, layout " and said =~ "got #{here}"
      end
    end
  end

  test "saving into a missing folder names the folder" do
    path = Path.join([tmp_dir!(), "none", "policy.safetensors"])
    assert {:error, %Error{op: :save} = error} = Policy.save(init!(), path)
    assert error.kind in [:not_found, :io]
    assert Exception.message(error) =~ "none"
  end

  test "a save that fails midway keeps the old file and leaves no other" do
    path = Path.join(tmp_dir!(), "policy.safetensors")
    :ok = Policy.save(init!(), path)
    before = File.read!(path)

    script = """
    {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
    {:error, error} = Sconce.Policy.save(policy, #{inspect(path)})
    IO.puts("kind " <> to_string(error.kind))
    """

    assert {output, 0} = elixir_within(script, 64)
    assert output =~ "kind io"
    assert File.read!(path) == before
    assert File.ls!(Path.dirname(path)) == ["policy.safetensors"]
  end

  describe "a forward pass" do
    @games [[[1.0, 2.0], [3.0, 4.0]], [[5.0, -6.0], [0.5, 0.25]]]

    defp tail(binary, numbers),
      do: binary_part(binary, byte_size(binary) - 4 * numbers, 4 * numbers)

    # `x W^T + b`, with the layout of the checkpoint.
    defp linear(policy, x, name) do
      {:ok, bias} = Policy.weight(policy, "heads.#{name}.bias")
      {:ok, weight} = Policy.weight(policy, "heads.#{name}.weight")

      weight
      |> floats()
      |> Enum.chunk_every(length(x))
      |> Enum.zip_with(floats(bias), fn row, b -> dot(row, x) + b end)
    end

    defp dot(a, b), do: a |> Enum.zip_with(b, &(&1 * &2)) |> Enum.sum()

    defp without(x, u) do
      along = dot(x, u) / dot(u, u)
      Enum.zip_with(x, u, &(&1 - along * &2))
    end

    test "may return only the last frames" do
      for heads <- [:independent, :autoregressive] do
        policy = init!(heads_kind: heads)
        labels = [labels: [[[0, 0, 0], [1, 0, 2]], [[1, 1, 1], [0, 1, 1]]]]
        {:ok, whole} = Policy.forward(policy, @games, labels)
        {:ok, last} = Policy.forward(policy, @games, [return_sequences: false] ++ labels)
        assert last.shape == {2, 5}
        assert last.state == whole.state
        <<first_game::binary-40, second_game::binary>> = whole.logits
        assert_close(last.logits, tail(first_game, 5) <> tail(second_game, 5))
      end
    end

    test "returns requested activations, and an error lists their names" do
      policy = init!()
      {:ok, out} = Policy.forward(policy, @games, taps: true)
      assert %{"trunk" => trunk, "embedding" => embedding} = out.taps
      assert {trunk.shape, byte_size(trunk.data)} == {{2, 2, 8}, 4 * 32}
      assert {embedding.shape, hd(floats(embedding.data))} == {{2, 2, 2}, 1.0}

      assert {:ok, %{taps: %{trunk: ^trunk} = taps}} =
               Policy.forward(policy, @games, taps: [:trunk])

      assert map_size(taps) == 1
      {:ok, step} = Policy.step(policy, Enum.map(@games, &hd/1), taps: ["trunk"])
      assert step.taps["trunk"].shape == {2, 1, 8}
      assert {:ok, %{taps: none}} = Policy.forward(policy, @games)
      assert none == %{}

      assert {:error, %Error{kind: :mismatch, details: %{what: "tap"} = details}} =
               Policy.forward(policy, @games, taps: [:trnk])

      assert {details.expected, details.got} == {"0.hidden, 1.hidden, embedding, trunk", "trnk"}
    end

    test "may hide directions of the trunk from the heads" do
      policy = init!()
      u = for i <- 1..8, do: i - 3.5
      v = for i <- 1..8, do: rem(i, 3) + 0.5
      {:ok, plain} = Policy.forward(policy, @games)

      for {vectors, dropped} <- [{u, [u]}, {[u], [u]}, {[u, v], [u, without(v, u)]}] do
        {:ok, out} = Policy.forward(policy, @games, project_out: vectors, taps: [:trunk])
        assert out.state == plain.state

        by_hand =
          for trunk <- out.taps.trunk.data |> floats() |> Enum.chunk_every(8),
              seen = Enum.reduce(dropped, trunk, &without(&2, &1)),
              name <- ["fire", "move"] do
            hidden = policy |> linear(seen, "#{name}_hidden") |> Enum.map(&max(&1, 0.0))
            linear(policy, hidden, "#{name}_logits")
          end

        for {x, y} <- Enum.zip(floats(out.logits), List.flatten(by_hand)),
            do: assert_in_delta(x, y, 1.0e-5)

        assert out.logits != plain.logits
      end

      binary = for x <- u, into: <<>>, do: <<x::float-32-little>>
      {:ok, %{logits: logits}} = Policy.forward(policy, @games, project_out: u)
      assert {:ok, %{logits: ^logits}} = Policy.forward(policy, @games, project_out: binary)
    end

    test "refuses wrong directions with a kind" do
      policy = init!()
      zeros = List.duplicate(0.0, 8)
      nan = :binary.copy(<<0, 0, 192, 127>>, 8)

      for {bad, kind} <- [
            {[1.0], :mismatch},
            {[], :mismatch},
            {[:left], :mismatch},
            {%{}, :mismatch},
            {<<1, 2>>, :mismatch},
            {zeros, :out_of_range},
            {nan, :non_finite}
          ] do
        assert {:error, %Error{kind: ^kind}} = Policy.forward(policy, @games, project_out: bad)
      end
    end
  end

  test "frames may be one binary, with the number of games" do
    policy = init!()
    games = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]
    binary = for v <- List.flatten(games), into: <<>>, do: <<v::float-32-little>>

    assert Policy.forward(policy, binary, batch: 2) == Policy.forward(policy, games)
    assert {:ok, %{shape: {1, 4, 5}}} = Policy.forward(policy, binary)
    assert {:ok, %{shape: {4, 5}}} = Policy.step(policy, binary)
  end

  test "autoregressive heads condition on given labels" do
    {:ok, policy} =
      Policy.init(Keyword.delete(@small, :hidden_size) ++ [heads_kind: :autoregressive])

    assert {:error, %Error{kind: :not_found}} = Policy.forward(policy, [[[1.0, 2.0]]])

    {:ok, out} = Policy.forward(policy, [[[1.0, 2.0]]], labels: [[[1, 0, 2]]])
    binary = <<1::16-little, 0::16-little, 2::16-little>>
    assert {:ok, ^out} = Policy.forward(policy, [[[1.0, 2.0]]], labels: binary)

    assert {:error, %Error{kind: :out_of_range, details: %{field: "move", value: 3.0}}} =
             Policy.forward(policy, [[[1.0, 2.0]]], labels: [1, 0, 3])

    for bad <- [[1, 0], <<1>>, [1.5, 0, 0], :none] do
      assert {:error, %Error{kind: :mismatch}} =
               Policy.forward(policy, [[[1.0, 2.0]]], labels: bad)
    end
  end

  test "frames of a wrong shape are refused" do
    policy = init!()

    for bad <- [[], [[]], [[[1.0, 2.0]], []], [[[1.0]]], <<1, 2, 3>>, <<>>, :frame, [1.0]] do
      assert {:error, %Error{kind: :mismatch}} = Policy.forward(policy, bad)
    end

    nan = <<0, 0, 192, 127, 0, 0, 0, 0>>
    assert {:error, %Error{kind: :non_finite}} = Policy.forward(policy, nan)

    assert {:error, %Error{kind: :mismatch}} =
             Policy.forward(policy, [[[1.0, 2.0]]], state: <<0>>)

    assert {:error, %Error{kind: :mismatch}} = Policy.step(policy, [[1.0, 2.0]], state: <<0::32>>)
  end

  test "a Melee frame with an unknown action is refused by name" do
    {:ok, policy} = Policy.init(hidden_size: 8)
    player = %{percent: 0, facing: 1, x: 0, y: 0, action: 5000, character: 1}
    player = Map.merge(player, %{on_ground: true, stock: 4})
    {:ok, row} = Frame.pack(%{own: player, opponent: player, stage: 31})

    assert {:error, %Error{kind: :out_of_range} = error} = Policy.forward(policy, row)
    assert Exception.message(error) == "forward: own.action: 5000 is outside 0..398"
  end

  test "wrong options are refused by name" do
    policy = init!()
    assert_raise ArgumentError, ~r/did you mean :seed\?/, fn -> Policy.init(@small, sed: 1) end
    assert_raise ArgumentError, ~r/:seed/, fn -> Policy.init(@small, seed: -1) end

    assert_raise ArgumentError, ~r/did you mean :notes\?/, fn ->
      Policy.save(policy, "x", note: 1)
    end

    assert_raise ArgumentError, ~r/did you mean :state\?/, fn ->
      Policy.forward(policy, [], stat: 1)
    end

    for call <- [&Policy.load/1, &Policy.save(policy, &1)] do
      assert_raise ArgumentError, ~r/expected a path, got: <<255>>/, fn -> call.(<<255>>) end
    end

    assert {:error, %Error{kind: :not_found, op: :weight}} = Policy.weight(policy, "none")
    assert {:ok, %Policy{spec: %Spec{}}} = Policy.init(Spec.new(@small))
  end
end
