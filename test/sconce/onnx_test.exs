defmodule Sconce.OnnxTest do
  use ExUnit.Case, async: true
  doctest Sconce.Onnx

  alias Sconce.{Embedding, Error, Onnx, Policy}
  import Sconce.Test.Scratch

  @script Path.expand("../support/onnx.py", __DIR__)
  # Relative to the largest value of an output.
  @tolerance 1.0e-5

  @backbones [
    mlp: [hidden_sizes: [64, 64]],
    gru: [hidden_size: 64, layer_norm: true],
    lstm: [hidden_size: 64],
    sliding_window: [hidden_size: 64, window_size: 20],
    min_gru: [hidden_size: 64]
  ]

  describe "in ONNX Runtime" do
    @describetag :onnxruntime

    for {name, opts} <- @backbones do
      test "a #{name} has the logits and states of Sconce.Policy" do
        spec = [
          embedding: {:vector, 6},
          backbone: unquote(name),
          heads: [move: {:categorical, 5}]
        ]

        {:ok, policy} = Policy.init(spec ++ unquote(opts), seed: 1)
        dir = tmp_dir!("onnx")

        runs =
          for {form, opts} <- [step: [], window: [], window: [state: true]],
              {batch, time} <- sizes(form) do
            name = "#{form}_#{opts[:state]}"
            {model, folder} = export(policy, dir, name, [form: form] ++ opts, batch, time)
            state = if form == :step or opts[:state], do: state(policy, batch)
            rows = floats(batch * time * 6)
            File.write!(Path.join(folder, "continuous.bin"), rows)
            for {name, data} <- parts(model.inputs, state, batch), do: write(folder, name, data)
            {:ok, out} = Policy.forward(policy, rows, batch: batch, state: state)
            {folder, [{"logits", out.logits} | parts(model.outputs, out.state, batch)]}
          end

        run(dir)
        for {folder, outputs} <- runs, {name, want} <- outputs, do: compare(folder, name, want)
      end
    end

    test "a policy of Melee reads ids and previous actions, and its heads read labels" do
      spec = [embedding: :melee, hidden_size: 32, heads: :autoregressive, prior: true]
      {:ok, policy} = Policy.init(spec, seed: 1)
      dir = tmp_dir!("onnx_melee")
      {_model, folder} = export(policy, dir, "window", [form: :window], 1, 3)
      frames = for percent <- [0, 12, 70], do: frame(percent)
      labels = for n <- 0..2, do: [1, 0, 1, 0, 0, 1, 0, 0, 16, n, 8, 8, 4]

      embedded =
        for frame <- frames do
          {:ok, embedded} = Embedding.embed(policy.spec.embedding, frame)
          embedded
        end

      write(folder, "continuous", for({continuous, _ids} <- embedded, do: continuous))
      write(folder, "ids", for({_, ids} <- embedded, id <- ids, do: <<id::64-little>>))
      write(folder, "labels", for(label <- List.flatten(labels), do: <<label::float-32-little>>))
      # Infinity: no previous action.
      write(folder, "previous", for(_label <- List.flatten(labels), do: <<0, 0, 128, 127>>))
      {:ok, out} = Policy.forward(policy, [frames], labels: labels)
      run(dir)
      compare(folder, "logits", out.logits)
    end
  end

  defp sizes(:step), do: [{1, 1}, {4, 1}]
  defp sizes(:window), do: [{1, 9}, {3, 40}]

  defp export(policy, dir, name, opts, batch, time) do
    folder = Path.join([dir, name, "#{batch}x#{time}"])
    File.mkdir_p!(folder)
    {:ok, model} = Onnx.export(policy, Path.join([dir, name, "model.onnx"]), opts)
    {model, folder}
  end

  defp state(policy, batch) do
    rows = floats(batch * 7 * policy.raw_width)
    {:ok, out} = Policy.forward(policy, rows, batch: batch)
    out.state
  end

  # The parts of a state by name, one after the other.
  defp parts(ports, state, batch) do
    {parts, _rest} =
      for %{name: name, shape: shape} <- ports, name =~ "state.", reduce: {[], state} do
        {parts, state} ->
          [:batch | dims] = Tuple.to_list(shape)
          bytes = 4 * batch * Enum.product(dims)
          <<part::binary-size(bytes), rest::binary>> = state
          {[{name, part} | parts], rest}
      end

    parts
  end

  defp floats(count),
    do: for(_number <- 1..count, into: <<>>, do: <<:rand.normal()::float-32-little>>)

  defp frame(percent) do
    player = %{
      percent: percent,
      stock: 4,
      x: 1,
      y: 0.5,
      action: 14,
      character: 2,
      facing: true,
      on_ground: true
    }

    %{own: player, opponent: %{player | x: -10.0}, stage: 31}
  end

  defp write(folder, name, data), do: File.write!(Path.join(folder, name <> ".bin"), data)

  defp run(dir) do
    {said, status} = System.cmd("python3", [@script, dir], stderr_to_stdout: true)
    assert status == 0, said
  end

  defp compare(folder, name, want) do
    got = numbers(File.read!(Path.join(folder, name <> ".out")))
    want = numbers(want)
    assert length(got) == length(want)
    largest = want |> Enum.map(&abs/1) |> Enum.max()
    apart = got |> Enum.zip(want) |> Enum.map(fn {a, b} -> abs(a - b) end) |> Enum.max()
    assert apart <= @tolerance * largest, "#{folder} #{name}: #{apart} of #{largest}"
  end

  # A value that is not finite does not match.
  defp numbers(data), do: for(<<number::float-32-little <- data>>, do: number)

  defp policy(backbone) do
    {:ok, policy} =
      Policy.init(embedding: {:vector, 2}, backbone: backbone, heads: [go: {:bernoulli, 1}])

    policy
  end

  test "a backbone without layers in ONNX is an error that lists those with them" do
    path = Path.join(tmp_dir!("onnx"), "model.onnx")
    assert {:error, %Error{} = error} = Onnx.export(policy(:mamba), path)
    assert %{kind: :mismatch, op: :export, details: %{expected: expected, got: "mamba"}} = error
    assert Exception.message(error) =~ "one of mlp, lstm, gru"
    refute File.exists?(path)

    # The documentation lists the same names.
    {:docs_v1, _, _, _, %{"en" => doc}, _, _} = Code.fetch_docs(Onnx)
    "one of " <> names = expected
    for name <- String.split(names, ", "), do: assert(doc =~ "`:#{name}`")
  end

  test "a path that cannot be written is an error" do
    dir = tmp_dir!("onnx")
    missing = Path.join(dir, "no/model.onnx")
    assert {:error, %Error{kind: :not_found, op: :export}} = Onnx.export(policy(:mlp), missing)
    assert {:error, %Error{kind: :mismatch, op: :export}} = Onnx.export(policy(:mlp), dir)
    assert File.ls!(dir) == []
  end

  test "a file is replaced as a whole" do
    dir = tmp_dir!("onnx")
    path = Path.join(dir, "model.onnx")
    File.write!(path, "old")
    {:ok, _model} = Onnx.export(policy(:mlp), path)
    assert File.stat!(path).size > 1000
    assert File.ls!(dir) == ["model.onnx"]
  end

  test "a file with weights in int8 is smaller" do
    dir = tmp_dir!("onnx")

    [f32, int8] =
      for weights <- [:f32, :int8] do
        path = Path.join(dir, "#{weights}.onnx")
        {:ok, _model} = Onnx.export(policy(:gru), path, weights: weights)
        File.stat!(path).size
      end

    assert int8 < 0.3 * f32
  end

  test "unknown options and forms raise with the names of the known ones" do
    policy = policy(:mlp)

    assert_raise ArgumentError, ~r/one of :step, :window/, fn ->
      Onnx.export(policy, "x", form: :steps)
    end

    assert_raise ArgumentError, ~r/did you mean :form/, fn ->
      Onnx.export(policy, "x", from: :step)
    end
  end
end
