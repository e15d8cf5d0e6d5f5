"""Adapters that were trained elsewhere and are imported by a job."""

from __future__ import annotations

import torch

from quicksilver.accounts.stored_files import read_pieces
from quicksilver.model.adapters import load_adapter
from tests.support.tuning import Shop, chat_lines, stored_adapter


def test_an_adapter_of_elsewhere_is_imported(shop: Shop) -> None:
    job = shop.create(chat_lines(), hyperparameters={"n_epochs": 2, "batch_size": 5, "rank": 4})
    shop.run()
    reply = shop.reply(job)
    archive = b"".join(read_pieces(shop.objects, "", reply["result_files"][1]))
    imported = shop.create(archive, "import", suffix="mine")
    shop.run()
    name = shop.reply(imported)["fine_tuned_model"]
    assert name.startswith("ft:toy:mine:")
    one, two = (load_adapter(stored_adapter(shop, each)) for each in (reply["fine_tuned_model"], name))
    for (_, _, a), (_, _, b) in zip(one.low_rank(), two.low_rank(), strict=True):
        assert torch.equal(a.A, b.A)
        assert torch.equal(a.B, b.B)


def test_a_hostile_import_is_refused_with_its_reason(shop: Shop) -> None:
    job = shop.create(b"not a zip", "import")
    shop.run()
    error = shop.reply(job)["error"]
    assert error["code"] == "invalid_adapter"
    assert "zip" in error["message"]
