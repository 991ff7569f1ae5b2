// Package httpapi is the HTTP interface: the routes of api.yaml, strict
// decoding, problem documents, cursors, deadlines and the metrics of requests.
// It decides nothing about money; every write is one call of the ledger's
// writer. It knows no SQL and no database driver.
//
// What it guarantees, each with the test that proves it:
//
//   - Routes and operations of api.yaml are the same set: TestRoutesAreTheOperations.
//   - Every exchange of the tests is one with api.yaml: package apitest.
//   - A code has one status, and the codes are those of api.yaml: TestCodesAreThoseOfTheContract.
//   - What is not exactly an operation is refused with a pointer to the field
//     and uses up no key: TestBodiesAreDecodedStrictly.
//   - Every request is answered within its deadline, also when the rest of the
//     program hangs or panics: TestHangingWriterIsAnswered, TestPanicIsAnswered.
//   - No text of an inner error reaches a client: TestInnerErrorsStayInside.
//   - The hand-written encoding equals the generic one: TestReceiptEqualsGenericEncoding.
//   - The page at /docs is made from api.yaml: TestPageIsCurrent.
package httpapi
