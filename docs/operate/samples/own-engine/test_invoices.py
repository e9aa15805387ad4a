"""Run it with pytest: the engine is called as the service calls it, in a separate process."""

from bridge.service.engine_kit import mail_with, try_awkward_mails, try_engine


def test_an_invoice_that_is_a_program_is_found():
    found = try_engine("invoices:Invoices", mail_with("Invoice.exe", b"MZ..."))
    assert (found.tags, found.score) == ({"invoice:program"}, 8.0)


def test_other_files_are_not():
    assert not try_engine("invoices:Invoices", mail_with("invoice.pdf", b"%PDF-1.7")).tags
    assert not try_engine("invoices:Invoices", mail_with("bill.exe", b"MZ..."), {"word": "rechnung"}).tags


def test_it_answers_whatever_it_gets():
    for trial in try_awkward_mails("invoices:Invoices"):
        assert not trial.problem, trial
