defmodule Sconce.Compat.ExPhil.GPUUtilsTest do
  use ExUnit.Case, async: true

  alias Sconce.{Error, GPU}

  # The public functions of ExPhil.Training.GPUUtils, with their arities.
  @functions [
    get_memory_info: [0, 1],
    format_mb: [1],
    memory_status_string: [0, 1],
    gpu_available?: [0],
    device_name: [0, 1],
    memory_status: [0, 1],
    check_memory_warning: [0, 1],
    check_free_memory: [0, 1],
    estimate_memory_mb: [0, 1],
    estimate_checkpoint_size: [0, 1],
    check_checkpoint_size_warning: [0, 1],
    count_params: [1],
    list_devices: [0],
    diagnose_cuda: [0, 1]
  ]

  test "Sconce.GPU has the functions of GPUUtils, with their names and arities" do
    own = GPU.__info__(:functions)
    for {name, arities} <- @functions, arity <- arities, do: assert({name, arity} in own)
    assert length(@functions) == 14
  end

  test "answers have the keys that an app of GPUUtils reads, or an error" do
    for {answer, keys} <- [
          {GPU.get_memory_info(0), [:used_mb, :total_mb, :free_mb, :utilization]},
          {GPU.memory_status(0), [:used_mb, :total_mb, :utilization]}
        ] do
      case answer do
        {:ok, map} -> for key <- keys, do: assert(is_map_key(map, key))
        {:error, error} -> assert %Error{} = error
      end
    end

    case GPU.list_devices() do
      {:ok, devices} -> for device <- devices, do: assert(%{index: _, name: _} = device)
      {:error, error} -> assert %Error{} = error
    end
  end

  test "estimates are those of GPUUtils, with its options and their defaults" do
    # round((n * bytes * 4 + batch * frames * 10,000 * bytes) / 2^20 * 1.2), worked out by hand from its formula.
    assert GPU.estimate_memory_mb() == 11
    assert GPU.estimate_memory_mb(param_count: 5_000_000, batch_size: 64, precision: :bf16) == 47

    assert GPU.estimate_memory_mb(
             param_count: 5_000_000,
             precision: :f32,
             temporal: true,
             window_size: 60
           ) == 267

    # round((n * 12 + 10,000) * 1.1), and without the optimiser n * 4.
    assert GPU.estimate_checkpoint_size() == 13_211_000

    assert GPU.estimate_checkpoint_size(param_count: 1_000_000, include_optimizer: false) ==
             4_411_000

    assert GPU.check_checkpoint_size_warning(param_count: 1_000) == :ok

    assert {:warning, _text} =
             GPU.check_checkpoint_size_warning(param_count: 50_000_000, threshold_mb: 500)

    assert {GPU.format_mb(2048), GPU.format_mb(512)} == {"2.00 GB", "512 MB"}
    assert "GPU: " <> _figures = GPU.memory_status_string()
    assert is_boolean(GPU.gpu_available?())
  end

  test "parameters in nested maps of tensors are counted" do
    tensor = fn shape -> %{data: <<>>, shape: shape, type: {:f, 32}} end

    assert GPU.count_params(%{dense: %{kernel: tensor.({512, 256}), bias: tensor.({256})}}) ==
             131_328
  end
end
