defmodule Sconce.NetTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.Net

  doctest Sconce.Net
  doctest Sconce.Net.Spec

  @image [
    input: [3, 8, 8],
    layers: [
      {:conv, 4, 3, stride: 2, padding: 1, bias: false},
      {:batch_norm, activation: :relu},
      {:depthwise, 3, padding: 1},
      {:residual, [{:conv, 4, 3, padding: :same}, :relu]},
      :global_mean,
      {:dense, 5}
    ]
  ]

  defp bytes(numbers), do: for(number <- numbers, into: <<>>, do: <<number::float-32-little>>)

  defp native(layer, input \\ [4, 16, 16]) do
    [layer] = Net.new(input: input, layers: [layer]).layers
    layer
  end

  describe "declarations" do
    test "a kernel of one number is square in an image and has one axis in a signal" do
      assert %{kernel: [3, 3], stride: [2, 2], padding: [1, 1], dilation: [1, 1]} =
               native({:conv, 2, 3, stride: 2, padding: 1})

      assert %{kernel: [3], stride: [1], padding: [0]} = native({:conv, 2, 3}, [4, 16])
      assert %{kernel: [3, 1], stride: [3, 1]} = native({:max_pool, [3, 1]})
      assert %{kernel: [4, 4], stride: [2, 2]} = native({:mean_pool, 4, stride: 2})
    end

    test "padding :same covers half of the dilated kernel" do
      assert native({:conv, 2, [3, 5], padding: :same, dilation: [2, 1]}).padding == [2, 2]

      for options <- [[stride: 2], [dilation: [1]]] do
        assert_raise ArgumentError, ~r/^:conv: /, fn ->
          native({:conv, 2, 3, [padding: :same] ++ options})
        end
      end

      assert_raise ArgumentError, ~r/odd kernel/, fn -> native({:conv, 2, 2, padding: :same}) end
    end

    test "a depthwise convolution has the channels of its input, also behind other layers" do
      assert %{kind: :conv, filters: 4, groups: 4} = native({:depthwise, 3})
      layers = [{:concat, [[{:conv, 2, 1}], []]}, {:depthwise, 1}]

      assert %{filters: 6, groups: 6} =
               Net.new(input: [4, 8], layers: layers).layers |> List.last()

      assert_raise ArgumentError, ~r/not known/, fn ->
        Net.new(input: [4, 8], layers: [:flatten, {:depthwise, 1}])
      end
    end

    test "a transposed convolution has a number for each axis in all of its lists" do
      assert %{
               kind: :conv_transpose,
               kernel: [4, 4],
               stride: [2, 2],
               padding: [1, 1],
               output_padding: [0, 0],
               dilation: [1, 1],
               groups: 1,
               bias: true,
               activation: :none
             } = native({:conv_transpose, 2, 4, stride: 2, padding: 1})

      assert %{kernel: [3], stride: [3], output_padding: [2]} =
               native({:conv_transpose, 2, 3, stride: 3, output_padding: 2}, [4, 16])

      assert_raise ArgumentError, ~r/^:conv_transpose: option :padding/, fn ->
        native({:conv_transpose, 2, 3, padding: :same})
      end

      layers = [{:conv_transpose, 2, 4, stride: 2, padding: 1}, {:depthwise, 1}]
      assert {:ok, outline} = Net.outline(input: [4, 6, 5], layers: layers)
      assert Enum.map(outline.layers, & &1.kind) == [:conv_transpose, :conv]
      assert outline.output == [2, 12, 10]
    end

    test "a wrong declaration raises an error that names its part" do
      nested = Enum.reduce(1..20, [:relu], fn _level, layers -> [{:residual, layers}] end)

      for {declaration, message} <- [
            {[input: [3, 8], layers: [:flaten]], "unknown layer :flaten, did you mean :flatten?"},
            {[input: [3], layers: [{:dense, 0}]],
             "size of :dense: expected a positive integer, got: 0"},
            {[input: [3], layers: [{:dense, 1, 2, 3}]],
             "layer: expected {:dense, size, options}"},
            {[input: [3], layers: [{:dense, 1, activation: :rellu}]], "did you mean :relu?"},
            {[input: [3, 4], layers: [{:conv, 0, 1}]], "filters of :conv"},
            {[input: [3, 4], layers: [{:max_pool, 2, stride: 0}]], ":max_pool: option :stride"},
            {[input: [0, 4], layers: []], "shape of input"},
            {[input: [1, 1, 1, 1], layers: []], "shape of input"},
            {[input: {:tokens, 5, []}, layers: []], "option :vocabulary is required"},
            {[input: [1], inputs: [a: [1]], layers: []], "exclude each other"},
            {[inputs: [a: [1], a: [1]], layers: []], "each name once"},
            {[inputs: [a: [1]], layers: [{:dense, 1}]],
             "the first layer of a net of several inputs"},
            {[inputs: [ecg: [1]], layers: [{:inputs, egc: []}]], ~s(did you mean "ecg"?)},
            {[input: [1], layers: [{:inputs, a: []}]], ":inputs is the first layer"},
            {[input: [1], layers: [:relu | :relu]], "layers: expected a list of layers"},
            {[input: [1], layers: [{:relu, 1}]], "expected :relu alone"},
            {[input: [1], layers: nested], "at most 16 levels"},
            {[input: [1], layers: List.duplicate(:relu, 1_000_000)], "at most 1024"},
            {[input: [1], layer: []], "did you mean :layers?"},
            {[layers: []], "option :input is required"}
          ] do
        error = assert_raise ArgumentError, fn -> Net.new(declaration) end
        assert Exception.message(error) =~ message
      end
    end

    test "layers that do not fit each other are an error with both shapes" do
      for {layers, part} <- [
            {[{:conv, 2, 9}], "layers.0"},
            {[{:conv, 2, 3}, {:dense, 4}], "layers.1"},
            {[{:residual, [{:conv, 2, 1}]}], "layers.0"},
            {[{:conv, 4, 1, groups: 2}], "layers.0"},
            {[{:conv_transpose, 4, 1, groups: 2}], "layers.0 (conv_transpose)"},
            {[{:conv_transpose, 4, 3, padding: 5}], "layers.0 (conv_transpose)"}
          ] do
        assert {:error, error} = Net.outline(input: [3, 8, 8], layers: layers)
        assert Exception.message(error) =~ part
      end
    end

    test "sixteen levels of layers are allowed, and seventeen are not" do
      nested = fn levels ->
        Enum.reduce(2..levels, [{:dense, 1}], fn _level, layers -> [{:residual, layers}] end)
      end

      assert {:ok, _outline} = Net.outline(input: [1], layers: nested.(16))

      assert_raise ArgumentError, ~r/at most 16 levels/, fn ->
        Net.new(input: [1], layers: nested.(17))
      end
    end

    test "a value that is too large with the zeros that its readers need together is refused" do
      branches =
        for {padding, stride} <- [{[8192, 0], [8192, 1]}, {[0, 8192], [1, 8192]}],
            do: [{:conv, 1, 1, padding: padding, stride: stride}, :global_mean]

      assert {:error, %{kind: :out_of_range} = error} =
               Net.init(input: [1, 1, 1], layers: [{:concat, branches}])

      assert Exception.message(error) =~ "zeros around it"
    end

    test "sizes that no memory holds are refused before they are allocated" do
      huge = 1_000_000_000_000

      for layer <- [{:conv, huge, 1}, {:upsample, huge}, {:conv, 1, 1, padding: huge}],
          do:
            assert({:error, %{kind: :out_of_range}} = Net.init(input: [3, 8, 8], layers: [layer]))
    end
  end

  describe "a net" do
    test "runs on lists, maps and binaries alike, with or without an axis of 1" do
      {:ok, net} = Net.init(@image, seed: 4)
      numbers = for i <- 1..192, do: :math.sin(i)
      lists = numbers |> Enum.chunk_every(8) |> Enum.chunk_every(8)
      data = bytes(numbers)
      assert {:ok, output} = Net.run(net, data)
      assert byte_size(output) == 20

      assert {:ok, %{data: ^output, shape: {5}}} =
               Net.run(net, %{data: data, shape: {3, 8, 8}, type: {:f, 32}})

      assert {:ok, listed} = Net.run(net, lists)
      assert bytes(listed) == output
      assert Net.run(net, [lists]) == {:ok, listed}
    end

    test "gives the same weights for a seed, and others for another" do
      [a, b, c] = for seed <- [1, 1, 2], do: elem(Net.init(@image, seed: seed), 1)
      assert Net.weights(a) == Net.weights(b)
      assert Net.weights(a) != Net.weights(c)
    end

    test "whose output is beyond 32-bit floats is an error that says so" do
      weights = %{"layers.0.weight" => [[3.0e38], [1]]}

      {:ok, net} = Net.from_weights([input: [1], layers: [{:dense, 2, bias: false}]], weights)

      assert {:error, %{kind: :non_finite, details: %{what: "output"}}} = Net.run(net, [10])
      assert {:ok, [large, 1.0]} = Net.run(net, [1])
      assert large > 2.9e38
    end

    test "takes a batch norm of PyTorch with its count of batches" do
      names = ~w(weight bias running_mean running_var)

      weights =
        Map.new(names, &{"layers.0." <> &1, [1]})
        |> Map.put("layers.0.num_batches_tracked", [7])

      assert {:ok, net} = Net.from_weights([input: [1], layers: [:batch_norm]], weights)
      assert {:ok, [value]} = Net.run(net, [1])
      assert_in_delta value, 1.0, 1.0e-5
    end

    test "with one input takes it by its name too" do
      spec = [inputs: [input: [2]], layers: [{:inputs, input: [{:dense, 1}]}]]

      for spec <- [spec, [input: [2], layers: [{:dense, 1}]]] do
        {:ok, net} = Net.init(spec, seed: 1)
        assert {:ok, output} = Net.run(net, [1, 2])
        assert Net.run(net, input: [1, 2]) == {:ok, output}
        assert Net.run(net, %{"input" => [1, 2]}) == {:ok, output}
      end
    end

    test "that would hold a scheduler runs on a dirty one" do
      inline? = fn input, layers ->
        {:ok, net} = Net.init(input: input, layers: layers)
        net.inline?
      end

      assert inline?.([3, 16, 16], [{:conv, 8, 3}])
      refute inline?.([3, 256, 256], [{:conv, 64, 3}])
      # Without a product.
      refute inline?.([1, 512, 512], [{:max_pool, 64, stride: 1, padding: 32}])
      refute inline?.([1, 2048, 2048], [:relu, :global_mean])
    end

    test "means a large input without losing digits" do
      {:ok, net} = Net.init(input: [1, 5000, 5000], layers: [:global_mean])

      assert {:ok, <<mean::float-32-little>>} =
               Net.run(net, :binary.copy(<<1.0::float-32-little>>, 25_000_000))

      assert_in_delta mean, 1.0, 1.0e-6
    end

    test "returns what its weights say" do
      spec = [input: [1, 2, 2], layers: [{:conv, 1, 2, activation: :relu}, :flatten, {:dense, 2}]]

      weights = %{
        "layers.0.weight" => [[[[1, 2], [3, 4]]]],
        "layers.0.bias" => [-10],
        "layers.2.weight" => [[2], [-1]],
        "layers.2.bias" => [0.5, 0]
      }

      {:ok, net} = Net.from_weights(spec, weights)
      # 1 + 4 + 9 + 16 - 10 = 20
      assert Net.run(net, [[[1, 2], [3, 4]]]) == {:ok, [40.5, -20.0]}
      assert Net.run(net, [[[0, 0], [0, 0]]]) == {:ok, [0.5, 0.0]}
      assert {:ok, read} = Net.weights(net)
      assert read["layers.2.weight"] == [[2.0], [-1.0]]

      assert {:error, %{kind: :not_found}} =
               Net.from_weights(spec, Map.delete(weights, "layers.0.bias"))

      assert {:error, %{kind: :mismatch}} = Net.from_weights(spec, Map.put(weights, "more", [1]))

      assert {:error, %{kind: :mismatch}} =
               Net.from_weights(spec, %{weights | "layers.0.bias" => [1, 2]})
    end

    test "of recurrent layers gives all states or the last one, in PyTorch's order of gates" do
      gru = fn opts -> [input: [1, 2], layers: [{:gru, 1, opts}]] end

      weights = %{
        "layers.0.weight_ih_l0" => [[0.5], [-1.0], [2.0]],
        "layers.0.weight_hh_l0" => [[1.5], [0.25], [-0.5]],
        "layers.0.bias_ih_l0" => [0.1, 0.2, 0.3],
        "layers.0.bias_hh_l0" => [0.4, -0.1, 0.6]
      }

      sigmoid = &(1 / (1 + :math.exp(-&1)))

      step = fn x, h ->
        r = sigmoid.(0.5 * x + 0.1 + 1.5 * h + 0.4)
        z = sigmoid.(-x + 0.2 + 0.25 * h - 0.1)
        new = :math.tanh(2 * x + 0.3 + r * (-0.5 * h + 0.6))
        (1 - z) * new + z * h
      end

      first = step.(0.7, 0.0)
      second = step.(-1.2, first)
      {:ok, net} = Net.from_weights(gru.([]), weights)
      assert {:ok, [[got_first, got_second]]} = Net.run(net, [[0.7, -1.2]])
      assert_in_delta got_first, first, 1.0e-6
      assert_in_delta got_second, second, 1.0e-6
      {:ok, net} = Net.from_weights(gru.(sequence: false), weights)
      assert Net.run(net, [[0.7, -1.2]]) == {:ok, [got_second]}

      layers = [{:lstm, 3}, {:gru, 4, sequence: false}, {:dense, 2}]
      assert {:ok, outline} = Net.outline(input: [2, 5], layers: layers)
      assert Enum.map(outline.layers, & &1.output) == [[3, 5], [4], [2]]
      assert {:error, error} = Net.outline(input: [2, 5, 5], layers: layers)
      assert Exception.message(error) =~ "layers.0 (lstm): expected [c, t], got [2, 5, 5]"
    end

    test "survives a file, with its declaration" do
      path = Path.join(tmp_dir!("net"), "net.safetensors")
      {:ok, net} = Net.init(@image, seed: 4)
      assert :ok = Net.save(net, path)
      assert {:ok, same} = Net.load(path)
      assert same.spec == net.spec

      odd = [input: [1], layers: [{:batch_norm, epsilon: 1.23456789e-5, momentum: 1 / 3}]]
      {:ok, odd} = Net.init(odd)
      assert :ok = Net.save(odd, path <> ".odd")
      assert {:ok, %{spec: spec}} = Net.load(path <> ".odd")
      assert spec == odd.spec

      assert same.outline == net.outline
      assert Net.weights(same) == Net.weights(net)

      File.write!(path, binary_part(File.read!(path), 0, 100))
      assert {:error, %{kind: :corrupt}} = Net.load(path)
      assert {:error, %{kind: :not_found}} = Net.load(path <> ".no")
    end

    test "refuses inputs of another shape, of another length and without value" do
      {:ok, net} = Net.init(@image)
      assert {:error, %{kind: :mismatch}} = Net.run(net, [1, 2, 3])
      assert {:error, %{kind: :mismatch}} = Net.run(net, bytes([1.0]))
      assert {:error, %{kind: :mismatch}} = Net.run(net, <<1, 2, 3>>)
      nan = <<0, 0, 192, 127>>
      assert {:error, %{kind: :non_finite}} = Net.run(net, nan <> bytes(List.duplicate(0.0, 191)))
      {:ok, zeros} = Net.run(net, bytes(List.duplicate(0.0, 192)))
      assert byte_size(zeros) == 20
    end

    test "takes named inputs as a map or a keyword list" do
      layers = [{:inputs, a: [{:dense, 2}], b: [{:dense, 3}]}]
      {:ok, net} = Net.init(inputs: [a: [2], b: [2]], layers: layers)
      assert {:ok, [_, _, _, _, _] = output} = Net.run(net, a: [1, 2], b: [3, 4])
      assert Net.run(net, %{"b" => [3, 4], "a" => [1, 2]}) == {:ok, output}
      assert {:ok, ^output} = Net.run(net, %{b: [3, 4], a: [1, 2]})
      assert_raise ArgumentError, "input b is missing", fn -> Net.run(net, a: [1, 2]) end
      assert_raise ArgumentError, ~r/unknown input/, fn -> Net.run(net, a: [1, 2], c: [3, 4]) end
      assert_raise ArgumentError, ~r/^inputs: expected a map/, fn -> Net.run(net, [1, 2]) end
    end

    test "refuses tokens that are not in the vocabulary" do
      {:ok, net} = Net.init(input: {:tokens, 3, vocabulary: 10}, layers: [{:embed, 4}])
      assert {:ok, [[_, _, _] | _] = columns} = Net.run(net, [0, 9, 0])
      for [first, _second, third] <- columns, do: assert(first == third)

      for tokens <- [[0, 10, 0], [0, -1, 0], [0, 0.5, 0]],
          do: assert({:error, _error} = Net.run(net, tokens))
    end

    test "gives each of many concurrent callers the output of its own input" do
      {:ok, net} = Net.init(@image, seed: 4)
      inputs = for i <- 1..16, do: bytes(for j <- 1..192, do: :math.sin(i * j))
      alone = for input <- inputs, do: Net.run(net, input)

      many =
        for(_round <- 1..20, input <- inputs, do: input)
        |> Task.async_stream(&Net.run(net, &1), max_concurrency: 16)
        |> Enum.map(&elem(&1, 1))

      assert many == List.duplicate(alone, 20) |> Enum.concat()
    end

    test "a large net runs too" do
      layers = [{:conv, 32, 3, padding: 1}, {:conv, 32, 3, padding: 1}, :global_mean]
      {:ok, net} = Net.init(input: [3, 64, 64], layers: layers)
      assert net.outline.flops > 8_000_000
      assert {:ok, output} = Net.run(net, bytes(List.duplicate(0.1, 3 * 64 * 64)))
      assert byte_size(output) == 128
    end
  end
end
